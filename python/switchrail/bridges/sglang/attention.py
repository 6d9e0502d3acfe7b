"""Registers Switchrail's attention backends under their names in SGLang."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from switchrail._core import PAGED_OPS
from switchrail.bridges.sglang.names import names_for

if TYPE_CHECKING:
    from switchrail.bridges.sglang.versions import Version
    from switchrail.runtime import Runtime

_REGISTRY = "sglang.srt.layers.attention.attention_registry"


def attach(runtime: Runtime, version: Version) -> None:
    """Registers an attention backend under each of Switchrail's names."""
    registry = import_module(_REGISTRY)
    for name in names_for(runtime, PAGED_OPS):

        def make(model_runner: Any, name: str = name) -> Any:
            """Makes the attention backend of this name for one of SGLang's model runners."""
            if model_runner.use_mla_backend:
                from switchrail.bridges.sglang.latent import LatentAttention as Backend
            else:
                from switchrail.bridges.sglang.full import FullAttention as Backend
            return Backend(runtime, version, model_runner, name)

        registry.register_attention_backend(name)(make)
