"""The attention function that served models use, and the config that selects this function."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, Final, NoReturn

import torch
from transformers import AttentionInterface

from switchrail.engine.models import softmax
from switchrail.engine.models.contract import KEYWORD
from switchrail.errors import BridgeError

IMPLEMENTATION: Final = "switchrail_bridge"
"""The name under which `attention` is registered. No mask function has this name, so models make no mask."""


def attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """The attention function that softmax layers call; see `softmax.attention`.

    Raises:
        BridgeError: The layer was not called by a served model.
    """
    if KEYWORD not in kwargs:
        raise BridgeError(
            f"attention implementation {IMPLEMENTATION!r} serves models given to "
            "switchrail.bridges.transformers.use, but no such model called this layer; "
            "valid for others: 'eager', 'sdpa'"
        )
    return softmax.attention(*args, **kwargs)


class ServedConfig:
    """The config for a served model's parts: equal to `original`, except that it selects `attention`.

    Both configs share one `__dict__`, so a change of one changes the other. Copying or pickling this config
    copies or pickles the original.
    """

    __slots__ = ("original",)

    original: Any

    @property
    def _attn_implementation(self) -> str:
        return IMPLEMENTATION

    @_attn_implementation.setter
    def _attn_implementation(self, value: object) -> NoReturn:
        raise implementation_changed(value)

    def __copy__(self) -> Any:
        return copy.copy(self.original)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.original, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.original.__reduce_ex__(protocol)


@cache
def _config_class(cls: Any) -> type[ServedConfig]:
    return type(f"Served{cls.__name__}", (ServedConfig, cls), {"__doc__": ServedConfig.__doc__})


def served_config(config: Any) -> Any:
    """The config that replaces `config` in the parts of a served model."""
    cls: Any = type(config)
    served: Any = object.__new__(_config_class(cls))
    served.__dict__ = config.__dict__
    served.original = config
    return served


def implementation_changed(value: object) -> BridgeError:
    """The error for setting a different attention implementation on a served model."""
    return BridgeError(
        f"got attention implementation {value!r} for a served model; call remove() of its handle before you "
        "set the implementation, then use() to serve the model again",
        found=value,
    )


AttentionInterface.register(IMPLEMENTATION, attention)
