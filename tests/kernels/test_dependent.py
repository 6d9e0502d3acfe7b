"""Kernels that may start before the previous kernel has ended, and the devices on which they may."""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import walk_packages

import pytest
import torch

pytest.importorskip("triton")

import switchrail_kernels
from switchrail_kernels import dependent, launch
from switchrail_kernels.launch import Launcher

LIBRARIES = ("cute", "flashinfer", "flashqla", "cutedsl", "hopper")


def launchers():
    for module in walk_packages(switchrail_kernels.__path__, "switchrail_kernels."):
        if not module.name.rpartition(".")[2].endswith(LIBRARIES):
            found = import_module(module.name)
            for name, value in vars(found).items():
                if isinstance(value, Launcher):
                    yield pytest.param(value, id=f"{module.name.partition('.')[2]}.{name}")


@pytest.mark.parametrize("launcher", [*launchers()])
def test_a_kernel_that_begins_early_waits_before_it_writes(launcher):
    kernel = launcher._kernel
    source = inspect.getsource(kernel.fn)
    assert launcher._early == ("EARLY: tl.constexpr" in source)
    if launcher._early:
        assert kernel.arg_names[-1] == "EARLY"
        waits = [source.find(call) for call in ("wait(EARLY)", "wait_first(EARLY)") if call in source]
        assert len(waits) == 1, "every program must wait once, in the kernel itself"
        rest = source[: waits[0]]
        assert "return" not in rest, "a program must not end before it waits"
        assert "tl.store" not in rest


class Kernel:
    """Records the arguments of its launches."""

    def __init__(self):
        self.launched = []

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.launched.append((arguments, options))


@pytest.mark.parametrize("can", [True, False])
def test_early_launches_are_a_constant_and_an_option(can, monkeypatch):
    monkeypatch.setattr(launch, "begins_early", lambda index: can)
    x, kernel = torch.zeros(4), Kernel()
    Launcher(kernel, early=True)((1, 1, 1), (x,), (2,), (3,), num_warps=4)
    options = {"num_warps": 4, "num_stages": 1}
    assert kernel.launched == [((x, 2, 3, can), {**options, "launch_pdl": True} if can else options)]
    Launcher(kernel)((1, 1, 1), (x,), (2,), (3,), num_warps=4)
    assert kernel.launched[1] == ((x, 2, 3), options)


@pytest.mark.parametrize(
    ("index", "hip", "capability", "driver", "expected"),
    [
        (0, None, (9, 0), 12030, True),
        (1, None, (12, 0), 13000, True),
        (0, None, (8, 9), 13000, False),
        (0, None, (9, 0), 12020, False),
        (0, "7.0", (9, 4), 0, False),
        (-1, None, (9, 0), 13000, False),
    ],
)
def test_devices_on_which_kernels_may_begin_early(index, hip, capability, driver, expected, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(dependent, "_driver_version", lambda: driver)
    assert dependent.begins_early.__wrapped__(index) is expected
