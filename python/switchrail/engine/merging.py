"""Merges a checkpoint's tensors on the device while transformers loads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

_HOST: Final = torch.device("cpu")

_LEAST: Final = 2**20
"""Tensors with fewer bytes in total, such as those that a model's code merges, are merged on the host."""


class MergedOn(TorchFunctionMode):
    """Copies weights to a device before `torch.stack` and `torch.cat` merge them.

    transformers reads weights to the host, where merging the weights of many experts takes longer than the
    rest of loading. If the device has too little memory for a merge, the weights are merged on the host.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        if func not in (torch.stack, torch.cat) or not args or not self._merges(args[0]):
            return func(*args, **kwargs)
        try:
            return func([one.to(self._device) for one in args[0]], *args[1:], **kwargs)
        except torch.OutOfMemoryError:
            return func([one.cpu() for one in args[0]], *args[1:], **kwargs)

    def _merges(self, tensors: Any) -> bool:
        """Whether to merge these tensors on the device, where some of them may already be."""
        devices = {one.device for one in tensors}
        if self._device in devices:
            return len(devices) > 1
        return devices == {_HOST} and sum(one.nbytes for one in tensors) >= _LEAST
