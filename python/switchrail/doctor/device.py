"""Checks that torch and the driver are compatible, and that the platform and its backends work."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from switchrail._core import Registration
from switchrail.checks import shown
from switchrail.doctor.finding import Finding
from switchrail.errors import BackendImportError
from switchrail.packages import INSTALL
from switchrail.runtime import Runtime
from switchrail.variables import PLATFORM
from switchrail.waiting import patience, within

DRIVER = Path("/proc/driver/nvidia/version")


def check_device() -> Iterator[Finding]:
    """Checks that torch can be imported, and that it can use the NVIDIA GPU, if there is one."""
    try:
        import torch
    except Exception as error:  # a broken build can raise any exception
        yield Finding("device", "torch", f"it can't be imported: {shown(error, None)}", INSTALL)
        return
    if not DRIVER.exists() or torch.version.hip is not None:
        return
    found = _gpu_problem()
    if found is None:
        yield from _architectures()
    else:
        yield Finding("device", "the NVIDIA GPU", *found)


def _gpu_problem() -> tuple[str, str] | None:
    """Why torch can't use the NVIDIA GPU, and the advice for it; None if torch can use the GPU."""
    import torch

    built, driver = torch.version.cuda, driver_cuda()
    if built is None:
        problem = f"torch {torch.__version__} was built without CUDA"
        return problem, "install a torch that was built for CUDA, as pytorch.org describes"
    if driver is None:
        problem = "its kernel driver is loaded, but the driver's library libcuda.so.1 is missing"
        return problem, "make the library visible to the process; in a container, use NVIDIA's runtime"
    if int(built.partition(".")[0]) > driver[0]:
        problem = (
            f"its driver supports CUDA up to {driver[0]}.{driver[1]}, but torch {torch.__version__} was "
            f"built for CUDA {built}"
        )
        return problem, f"install a newer driver, or a torch built for CUDA {driver[0]}"
    if not torch.cuda.is_available():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        problem = "torch finds no device, although the driver and its library libcuda.so.1 are installed"
        if hidden is not None:
            problem += f"; CUDA_VISIBLE_DEVICES is {hidden!r}"
        unset = "" if hidden is None else "unset CUDA_VISIBLE_DEVICES, or "
        return problem, f"{unset}run `nvidia-smi` to see whether the driver finds the device"
    return None


def check_platform(runtime: Runtime) -> Iterator[Finding]:
    """Chooses the platform, calls methods of its device, and constructs its backends."""
    try:
        platform = runtime.platform
    except Exception as error:  # a broken torch can raise any exception
        yield Finding(
            "platform", "the platform", str(error), f"set {PLATFORM} to a platform that works, such as cpu"
        )
        return
    subject, seconds = f"platform {platform.kind}", patience(runtime._loader.seconds())
    for what in ("name", "capability", "total_memory", "current_memory_usage", "supported_dtypes"):
        try:
            work = getattr(platform.hardware, what)
            within(seconds, work, subject, f"its method {what}")
        except Exception as error:  # a vendor's code can raise any exception
            advice = "ask the platform's vendor: Switchrail needs this method"
            yield Finding("platform", subject, f"{what} raised {type(error).__name__}: {error}", advice)
    for backend in runtime.backends():
        if platform.kind not in {device["kind"] for device in backend.capabilities["devices"]}:
            continue
        try:
            name = f"{backend.op} backend {backend.name} of {backend.origin}"
            work = partial(runtime.build, backend.op, backend.name)
            within(seconds, work, name, "its construction")
        except Exception as error:  # a module or a constructor can raise any exception
            yield _not_constructed(backend, error)


def _not_constructed(backend: Registration, error: Exception) -> Finding:
    problem: object = error
    advice = f"it is from {backend.origin}: install the package that the message names, or ask the vendor"
    if isinstance(error, BackendImportError):
        problem = error.fields["problem"]
        if (missing := error.fields["missing"]) is not None:
            advice = (
                f"it is from {backend.origin}, and {missing!r} in its registered path does not exist: "
                "correct the path in the registration, or ask the vendor"
            )
    subject = f"{backend.op} backend {backend.name}"
    return Finding("backends", subject, f"it can't be constructed: {problem}", advice)


def driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA version that the NVIDIA driver supports, as (major, minor).

    None if the driver's library is missing or returns an error.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    found = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(found)) != 0:
        return None
    return found.value // 1000, found.value % 1000 // 10


def _architectures() -> Iterator[Finding]:
    import torch

    names = torch.cuda.get_arch_list()
    built = [_number(name) for name in names]
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        # A device also runs code for an earlier minor version of its generation, and PTX ("compute_") for any
        # earlier device.
        fits = [number for number in built if number // 10 == major and number % 10 <= minor]
        if not fits and not any(name.startswith("compute_") for name in names):
            yield Finding(
                "device",
                f"cuda:{index}",
                f"it has capability {major}.{minor}, but torch was built for {', '.join(names)}",
                f"install a torch that was built for capability {major}.{minor}",
            )


def _number(name: str) -> int:
    digits = "".join(letter for letter in name.partition("_")[2] if letter.isdigit())
    return int(digits or 0)
