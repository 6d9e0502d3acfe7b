"""SGLang's lightning attention and Mamba2 layers, and LFM2's layers that are only convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from switchrail.bridges.sglang.asked import refuse, serve
from switchrail.bridges.sglang.names import OURS
from switchrail.bridges.sglang.routes import HeadSizes, modules_of, radix_heads
from switchrail.bridges.sglang.states import Kind, Memory, ServedLayers, convolution
from switchrail.errors import BridgeError
from switchrail.ops import Layer, LightningCall, LightningLayer, Mamba2Call, Mamba2Layer, ShortConvCall

if TYPE_CHECKING:
    from switchrail.bridges.sglang.versions import Version
    from switchrail.runtime import Runtime

_ATTENTION = "sglang.srt.layers.attention"


class Lightning(Kind):
    """Lightning attention of Bailing and MiniMax models.

    SGLang stores its states as [K, V]; the backends get transposed views, [V, K].
    """

    op = "lightning"
    ops = ("lightning",)
    state_layout = "VK"

    def __init__(self, backend: Any) -> None:
        """Reads data of SGLang's backend: decays, whether queries are scaled, and the ids of the layers.

        Raises:
            BridgeError: The server's option for the cache's dtype is not `auto`.
        """
        if backend.kv_cache_dtype_str != "auto":
            raise BridgeError(
                f"the option kv_cache_dtype is {backend.kv_cache_dtype_str!r}; valid: 'auto'",
                found=backend.kv_cache_dtype_str,
                valid=("auto",),
            )
        self._slopes = backend.tp_slope
        self._scaled = backend.linear_backend == "seg_la"
        self._ids = backend.req_to_token_pool.mamba_map

    def modules(self, model: torch.nn.Module) -> dict[int, Any]:
        """See `Kind`."""
        from sglang.srt.layers.radix_attention import RadixAttention

        return {id: each for id, each in modules_of(model, RadixAttention).items() if id in self._ids}

    def heads(self, module: Any) -> HeadSizes:
        """See `Kind`."""
        return radix_heads(module)

    def layers(self, module: Any, memory: Memory) -> tuple[Layer, ...]:
        """See `Kind`."""
        rows = memory.row_states
        return (
            LightningLayer(
                g=-self._slopes[module.layer_id].flatten(),
                state=memory.states.mT,
                row_states=None if rows is None else rows.mT,
                scale=float(module.scaling) if self._scaled else 1.0,
            ),
        )

    def example(self, module: Any, layers: tuple[Any, ...], rows: int, dtype: torch.dtype) -> tuple[Any, ...]:
        """See `Kind`."""
        device = layers[0].g.device
        q = torch.empty(rows, module.tp_q_head_num, module.qk_head_dim, dtype=dtype, device=device)
        v = torch.empty(rows, module.tp_v_head_num, module.v_head_dim, dtype=dtype, device=device)
        return (LightningCall(layers[0], q, q, v, v),)

    @staticmethod
    def run(
        original: Callable[..., Any],
        backend: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **more: Any,
    ) -> Any:
        """Runs a layer; a hook around SGLang's `forward_extend` and `forward_decode`."""
        served: ServedLayers | None = backend.switchrail
        if served is None or not served.serves(forward_batch):
            return original(backend, q, k, v, layer, forward_batch, save_kv_cache, **more)
        q, k = (each.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim) for each in (q, k))
        v = v.reshape(-1, layer.tp_v_head_num, layer.v_head_dim)
        out = torch.empty(v.shape, dtype=q.dtype, device=q.device)
        call = LightningCall(served.layers(layer.layer_id)[0], q, k, v, out)
        served.run(layer.layer_id, forward_batch, call)
        return out.flatten(1)


class Mamba2(Kind):
    """Mamba2 layers of Nemotron-H, Granite, Falcon-H1 and other models, with their convolutions."""

    op = "mamba2"
    ops = ("short_conv", "mamba2")
    state_layout = "VK"

    def __init__(self, backend: Any) -> None:
        """Keeps the ids of the model's layers with states."""
        self._ids = backend.req_to_token_pool.mamba_map

    def modules(self, model: torch.nn.Module) -> dict[int, Any]:
        """See `Kind`. SGLang's modules have no layer ids, but are in the order of the ids."""
        from sglang.srt.layers.attention.mamba.mamba import MambaMixer2

        found = [each for each in model.modules() if isinstance(each, MambaMixer2)]
        ids = sorted(self._ids)
        if found and len(found) != len(ids):
            raise BridgeError(f"the model has {len(found)} Mamba2 layers, but states for {len(ids)} layers")
        return dict(zip(ids, found, strict=False))

    def heads(self, module: Any) -> HeadSizes:
        """See `Kind`."""
        return _heads(module)

    def layers(self, module: Any, memory: Memory) -> tuple[Layer, ...]:
        """See `Kind`."""
        return (
            convolution(module.conv1d.weight.flatten(1), module.conv1d.bias, module.activation, memory),
            Mamba2Layer(
                A=module.A.detach(),
                D=module.D.detach(),
                dt_bias=module.dt_bias.detach(),
                state=memory.states,
                row_states=memory.row_states,
                dt_softplus=True,
                dt_min=0.0,
                dt_max=math.inf,
            ),
        )

    def example(self, module: Any, layers: tuple[Any, ...], rows: int, dtype: torch.dtype) -> tuple[Any, ...]:
        """See `Kind`."""
        inner, convolved, heads = self._sizes(module)
        projected = torch.empty(rows, inner + convolved + heads, dtype=dtype, device=module.A.device)
        return self._calls(module, layers, *torch.split(projected[:, inner:], [convolved, heads], dim=-1))

    @staticmethod
    def _sizes(module: Any) -> tuple[int, int, int]:
        """The numbers of columns of the gate, of the convolution's inputs and of the time steps."""
        sizes = (module.intermediate_size, module.conv_dim, module.num_heads)
        inner, convolved, heads = (size // module.tp_size for size in sizes)
        return inner, convolved, heads

    @staticmethod
    def _calls(
        module: Any, layers: tuple[Any, ...], mixed: torch.Tensor, dt: torch.Tensor
    ) -> tuple[Any, ...]:
        heads = _heads(module)
        convolved = mixed.new_empty(mixed.shape)
        inner, states = heads.v_heads * heads.head_size_v, heads.k_heads * heads.head_size_k
        x, b, c = torch.split(convolved, [inner, states, states], dim=-1)
        b, c = (each.view(-1, heads.k_heads, heads.head_size_k) for each in (b, c))
        x = x.view(-1, heads.v_heads, heads.head_size_v)
        out = mixed.new_empty(x.shape)
        return ShortConvCall(layers[0], mixed, convolved), Mamba2Call(layers[1], x, b, c, dt, out)

    @classmethod
    def run(
        cls,
        original: Callable[..., Any],
        backend: Any,
        mixer: Any,
        hidden_states: torch.Tensor,
        output: torch.Tensor | None,
        layer_id: int,
        forward_batch: Any,
        mup_vector: torch.Tensor | None = None,
        use_triton_causal_conv: bool = False,
    ) -> Any:
        """Runs a layer, with SGLang's projections and norm; a hook around the backend's `forward`."""
        served: ServedLayers | None = backend.switchrail
        if served is None or not served.serves(forward_batch):
            return original(
                *(backend, mixer, hidden_states, output, layer_id, forward_batch),
                *(mup_vector, use_triton_causal_conv),
            )
        projected, _ = mixer.in_proj(hidden_states)
        if mup_vector is not None:
            projected = projected * mup_vector
        gate, mixed, dt = torch.split(projected, [*cls._sizes(mixer)], dim=-1)
        calls = cls._calls(mixer, served.layers(layer_id), mixed, dt)
        served.run(layer_id, forward_batch, *calls)
        result, _ = mixer.out_proj(mixer.norm(calls[-1].out.flatten(1), gate))
        if output is not None:
            output[: len(result)].copy_(result)
        return result


def _heads(module: Any) -> HeadSizes:
    """The heads of a Mamba2 layer; each of its groups is a q head and a k head."""
    groups, heads = module.n_groups // module.tp_size, module.num_heads // module.tp_size
    return HeadSizes(module.ssm_state_size, module.head_dim, groups, groups, heads)


class Convolution(Kind):
    """LFM2's convolution layers: a gate, a short convolution, and another gate."""

    op = "short_conv"
    ops = ("short_conv",)
    state_layout = None

    def modules(self, model: torch.nn.Module) -> dict[int, Any]:
        """See `Kind`."""
        found: list[Any] = [each for each in model.modules() if type(each).__name__ in _CONVOLUTIONS]
        return {each.layer_idx: each for each in found}

    def heads(self, module: Any) -> None:
        """See `Kind`."""

    def layers(self, module: Any, memory: Memory) -> tuple[Layer, ...]:
        """See `Kind`."""
        return (convolution(module.conv_weight, module.conv_bias, None, memory),)

    def example(self, module: Any, layers: tuple[Any, ...], rows: int, dtype: torch.dtype) -> tuple[Any, ...]:
        """See `Kind`."""
        x = torch.empty(rows, len(module.conv_weight), dtype=dtype, device=module.conv_weight.device)
        return (ShortConvCall(layers[0], x, x),)

    @staticmethod
    def run(
        original: Callable[..., Any], module: Any, hidden_states: torch.Tensor, forward_batch: Any
    ) -> Any:
        """Runs a layer, with SGLang's projections; a hook around the module's `forward`."""
        from sglang.srt.model_executor.forward_context import get_attn_backend

        served: ServedLayers | None = get_attn_backend().linear_attn_backend.switchrail
        if served is None or not served.serves(forward_batch):
            return original(module, hidden_states, forward_batch)
        before, after, x = module.in_proj(hidden_states)[0].chunk(3, dim=-1)
        x = before * x
        out = torch.empty_like(x)
        call = ShortConvCall(served.layers(module.layer_idx)[0], x, out)
        served.run(module.layer_idx, forward_batch, call)
        return module.out_proj(after * out)[0]


_CONVOLUTIONS = {"Lfm2ShortConv": "sglang.srt.models.lfm2", "Lfm2MoeShortConv": "sglang.srt.models.lfm2_moe"}
"""The names of SGLang's classes for LFM2's convolution layers, with the module that defines each class."""


_BACKENDS: dict[str, tuple[type[Lightning | Mamba2], str, tuple[str, ...]]] = {
    "lightning": (
        Lightning,
        f"{_ATTENTION}.linear.lightning_backend.LightningAttentionBackend",
        ("forward_extend", "forward_decode"),
    ),
    "mamba2": (Mamba2, f"{_ATTENTION}.hybrid_linear_attn_backend.Mamba2AttnBackend", ("forward",)),
}
"""For each op: the kind of its layers, SGLang's backend class, and that class's methods that run a layer."""


def attach(runtime: Runtime, version: Version) -> None:
    """Hooks SGLang's backends for lightning attention, Mamba2 and LFM2; see `serve` and `refuse`."""

    def hook(owner: str, methods: tuple[str, ...], kind: type[Any]) -> None:
        for method in methods:
            runtime.hooks.add(f"{owner}.{method}", kind.run, "around", source=OURS)

    for op, (kind, owner, methods) in _BACKENDS.items():
        if op in version.linear_ops:
            serve(runtime, version, kind, owner)
            hook(owner, methods, kind)
        else:
            refuse(runtime, version, owner)
    if "short_conv" in version.linear_ops:
        serve(
            runtime,
            version,
            lambda backend: Convolution(),
            f"{_ATTENTION}.linear.short_conv_backend.ShortConvAttnBackend",
        )
        for name, module in _CONVOLUTIONS.items():
            hook(f"{module}.{name}", ("forward",), Convolution)
