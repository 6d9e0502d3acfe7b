"""Device families that have a torch module of their own, such as `torch.cuda`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from switchrail.checks import shown
from switchrail.errors import PlatformError
from switchrail.platforms.hardware import Hardware, check_device


class Accelerator(Hardware):
    """A device with an index, in a family whose torch module has the same functions as `torch.cuda`.

    Importing this class imports neither torch nor `package`. Both are imported when a device is looked for.
    If one is not installed, the family has no devices.

    Attributes:
        torch_type: The family's name in torch; its module is `torch.<torch_type>`.
        package: The package that adds the family to torch; None if torch itself has the family.
        process_group: The backend of `torch.distributed` for the family.
    """

    torch_type: ClassVar[str]
    package: ClassVar[str | None] = None
    process_group: ClassVar[str]

    def __init__(self, device: str | None = None) -> None:
        there = self.devices()
        if device is None or device == self.torch_type:
            device = self._current() if there else self.torch_type
        check_device(device, there)
        super().__init__(device)

    @classmethod
    def devices(cls) -> tuple[str, ...]:
        """The present devices, as `<torch_type>:0` and so on.

        Raises:
            PlatformError: The family's package is installed but can't be imported.
        """
        if not cls._is_present():
            return ()
        return tuple(f"{cls.torch_type}:{index}" for index in range(cls._module().device_count()))

    @classmethod
    def _is_present(cls) -> bool:
        """Whether torch supports the family and finds a device of it."""
        if not is_importable("torch") or (cls.package is not None and not is_importable(cls.package)):
            return False
        module = cls._module()
        return module is not None and bool(module.is_available())

    @classmethod
    def _module(cls) -> Any:
        """The family's module in torch; None if this torch was built without it."""
        import torch

        if cls.package is not None:
            import_package(cls.package, cls.kind)
        return getattr(torch, cls.torch_type, None)

    @property
    def index(self) -> int:
        """The index of the device in its family."""
        return int(self.device.rpartition(":")[2])

    def name(self) -> str:
        """The name that torch reports."""
        return str(self._module().get_device_name(self.index))

    def total_memory(self) -> int | None:
        """The device's memory in bytes, from its properties in torch or else from torch's `mem_get_info`."""
        module = self._module()
        properties = module.get_device_properties(self.index)
        return int(getattr(properties, "total_memory", 0) or module.mem_get_info(self.index)[1]) or None

    def current_memory_usage(self) -> int | None:
        """The memory in use, in bytes: total memory minus free memory."""
        total = self.total_memory()
        return None if total is None else total - int(self._module().mem_get_info(self.index)[0])

    def get_device(self) -> str:
        """The device on which torch currently allocates by default."""
        return self._current()

    @classmethod
    def _current(cls) -> str:
        return f"{cls.torch_type}:{cls._module().current_device()}"

    def set_device(self, device: str) -> None:
        """Sets torch's current device."""
        self._module().set_device(device)

    def own_stream(self) -> Callable[[], AbstractContextManager[object]]:
        """See `Hardware.own_stream`. The stream is a `torch.<torch_type>.Stream`."""
        module = self._module()
        stream = module.Stream(device=self.device)
        return partial(_launching_on, module, stream, module.Event(), module.Event())

    def synchronize(self) -> None:
        """Waits for all streams of the device."""
        self._module().synchronize(self.device)

    def empty_cache(self) -> None:
        """Empties the cache of torch's allocator."""
        self._module().empty_cache()

    def keeps_freed_memory(self) -> bool:
        """True, since torch's allocator keeps freed memory."""
        return True

    def distributed_backend(self) -> str:
        """The family's backend of `torch.distributed`."""
        return self.process_group

    def seed(self, seed: int) -> None:
        """Seeds torch's generators of the CPU and of all devices."""
        import torch

        torch.manual_seed(seed)

    def pin_memory_available(self) -> bool:
        """True: the device can copy from pinned memory."""
        return True

    def supported_dtypes(self) -> tuple[str, ...]:
        """float32, float16 and bfloat16."""
        return ("bfloat16", "float16", "float32")


@contextmanager
def _launching_on(module: Any, stream: Any, before: Any, after: Any) -> Iterator[None]:
    outer = module.current_stream(stream.device)
    before.record(outer)
    stream.wait_event(before)
    try:
        with module.stream(stream):
            yield
    finally:
        after.record(stream)
        outer.wait_event(after)


def is_importable(package: str) -> bool:
    """Whether a package is installed; does not import it."""
    return find_spec(package) is not None


def import_package(package: str, kind: str) -> Any:
    """Imports the package that adds a family to torch.

    Raises:
        PlatformError: The import failed.
    """
    try:
        return import_module(package)
    except Exception as error:
        raise PlatformError(
            f"can't look for {kind} devices: {package} is installed, but importing it failed: "
            f"{shown(error, None)}; set SWITCHRAIL_PLATFORM=cpu to skip the search",
            found=kind,
            package=package,
        ) from error
