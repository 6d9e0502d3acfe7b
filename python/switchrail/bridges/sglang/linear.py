"""SGLang's layers of the gated delta rule and of Kimi delta attention, with their convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from switchrail.bridges.sglang.asked import refuse, serve
from switchrail.bridges.sglang.names import OURS, is_ours
from switchrail.bridges.sglang.routes import HeadSizes, modules_of
from switchrail.bridges.sglang.states import Kind, Memory, ServedLayers, convolution
from switchrail.ops import GatedDeltaCall, GatedDeltaLayer, KdaCall, KdaLayer, Layer, ShortConvCall

if TYPE_CHECKING:
    from switchrail.bridges.sglang.versions import Version
    from switchrail.runtime import Runtime

_FOLDER = "sglang.srt.layers.attention.linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Kind):
    """A kind of delta-rule layers, and SGLang's classes that run these layers.

    Attributes:
        op: The op of the delta rule, which is also the name of the kind in a layout.
        module: SGLang's module with the classes `dispatcher` and `backend`.
        dispatcher: The name of the class that chooses SGLang's kernels.
        backend: The name of the class that runs the layers.
        layer: Makes the constant arguments of the delta rule from SGLang's layer and its part of the pools.
        call: The class of the delta rule's calls.
        decays: Returns the shape of one token's decays in a layer.
        window: Returns a pool of convolution windows as a view with the axes slots, channels and inputs.
        activation: The activation of the convolution; None means that of SGLang's layer.
    """

    op: str
    module: str
    dispatcher: str
    backend: str
    layer: Callable[[Any, Memory], Layer]
    call: Callable[..., Any]
    decays: Callable[[Any], tuple[int, ...]]
    window: Callable[[torch.Tensor], torch.Tensor]
    activation: str | None
    state_layout: str = "VK"

    @property
    def ops(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Kind`."""
        return ("short_conv", self.op)

    @property
    def owner(self) -> str:
        """The dotted path of SGLang's backend class."""
        return f"{self.module}.{self.backend}"

    def modules(self, model: torch.nn.Module) -> dict[int, Any]:
        """See `Kind`."""
        from sglang.srt.layers.radix_linear_attention import RadixLinearAttention

        return modules_of(model, RadixLinearAttention)

    def heads(self, module: Any) -> HeadSizes:
        """See `Kind`."""
        m = module
        return HeadSizes(m.head_k_dim, m.head_v_dim, m.num_q_heads, m.num_k_heads, m.num_v_heads)

    def layers(self, module: Any, memory: Memory) -> tuple[Layer, ...]:
        """See `Kind`."""
        rows = memory.row_windows
        windows = replace(
            memory,
            windows=self.window(memory.windows),
            row_windows=None if rows is None else self.window(rows),
        )
        activation = self.activation or module.activation
        first = convolution(module.conv_weights, module.bias, activation, windows)
        return first, self.layer(module, memory)

    def example(self, module: Any, layers: tuple[Any, ...], rows: int, dtype: torch.dtype) -> tuple[Any, ...]:
        """See `Kind`."""
        device = module.A_log.device
        mixed_qkv = torch.empty(rows, module.q_dim + module.k_dim + module.v_dim, dtype=dtype, device=device)
        decays = torch.empty(rows, *self.decays(module), dtype=dtype, device=device)
        weights = torch.empty(rows, module.num_v_heads, dtype=dtype, device=device)
        return self.calls(module, layers, mixed_qkv, decays, weights)

    def calls(
        self, module: Any, layers: tuple[Any, ...], mixed_qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[ShortConvCall, Any]:
        """A layer's two calls. The q, k and v of the second call are views of the first call's result."""
        first, second = layers
        count = len(mixed_qkv)
        convolved = mixed_qkv.new_empty(count, mixed_qkv.shape[1])
        q, k, v = torch.split(convolved, [module.q_dim, module.k_dim, module.v_dim], dim=-1)
        call = self.call(
            second,
            q.view(count, module.num_q_heads, module.head_q_dim),
            k.view(count, module.num_k_heads, module.head_k_dim),
            v.view(count, module.num_v_heads, module.head_v_dim),
            a.reshape(count, *self.decays(module)),
            b.reshape(count, module.num_v_heads),
            convolved.new_empty(count, module.num_v_heads, module.head_v_dim),
        )
        return ShortConvCall(first, mixed_qkv, convolved), call

    def run(
        self,
        original: Callable[..., Any],
        backend: Any,
        layer: Any,
        forward_batch: Any,
        mixed_qkv: Any,
        a: Any,
        b: Any,
        **more: Any,
    ) -> Any:
        """Runs a layer; a hook around SGLang's `forward_extend` and `forward_decode`.

        In decode, `mixed_qkv` may be a pair of undivided projections, `q | k | v | z` and `b | a`. Then the
        result is a pair too: the output and z.
        """
        served: ServedLayers | None = backend.switchrail
        if served is None or not served.serves(forward_batch):
            return original(backend, layer, forward_batch, mixed_qkv, a, b, **more)
        z = None
        if isinstance(mixed_qkv, tuple):
            whole, gates = mixed_qkv
            channels = layer.q_dim + layer.k_dim + layer.v_dim
            mixed_qkv, z = whole[:, :channels], whole[:, channels:]
            b, a = gates.chunk(2, dim=-1)
        calls = self.calls(layer, served.layers(layer.layer_id), mixed_qkv, a, b)
        served.run(layer.layer_id, forward_batch, *calls)
        out: torch.Tensor = calls[-1].out
        if z is None:
            return out.unsqueeze(0)
        return out.unsqueeze(0), z.view(len(z), layer.num_v_heads, layer.head_v_dim)


def attach(runtime: Runtime, version: Version) -> None:
    """Hooks SGLang's backends for `FAMILIES`; see `serve` and `refuse`."""
    for family in FAMILIES:
        if family.op in version.linear_ops:
            _attach(runtime, version, family)
        else:
            refuse(runtime, version, family.owner)


def _attach(runtime: Runtime, version: Version, family: Family) -> None:
    hooks = runtime.hooks

    def plain(dispatcher: Any, *backends: Any, **named: Any) -> tuple[Any, Any]:
        """For layers that Switchrail serves, makes SGLang's dispatcher choose SGLang's Triton kernels."""
        triton = type(backends[0]).TRITON
        return (dispatcher, *(triton if b is not None and is_ours(b.value) else b for b in backends)), named

    def records_prompts(result: bool, backend: Any) -> bool:
        """Whether SGLang captures prompts; never if Switchrail's backends serve them."""
        return result and (backend.switchrail is None or "prefill" not in backend.switchrail.asked)

    owner = family.owner
    hooks.add(f"{family.module}.{family.dispatcher}.__init__", plain, "before", source=OURS)
    serve(runtime, version, lambda backend: family, owner)
    for method in ("forward_decode", "forward_extend"):
        hooks.add(f"{owner}.{method}", family.run, "around", source=OURS)
    if version.records_prompts is not None:
        hooks.add(f"{owner}.{version.records_prompts}", records_prompts, "after", source=OURS)


def _delta_arguments(module: Any, memory: Memory) -> dict[str, Any]:
    """The constant arguments that layers of both delta rules have in common."""
    return {
        "state": memory.states,
        "row_states": memory.row_states,
        "scale": module.head_k_dim**-0.5,
        "qk_l2norm": True,
        "beta_scale": 1.0,
    }


def _kimi_layer(module: Any, memory: Memory) -> KdaLayer:
    return KdaLayer(
        **_delta_arguments(module, memory),
        gate="softplus" if module.lower_bound is None else "sigmoid",
        A_log=module.A_log.detach().reshape(-1),
        dt_bias=module.dt_bias.detach().reshape(module.num_v_heads, module.head_k_dim),
        lower_bound=None if module.lower_bound is None else float(module.lower_bound),
    )


def _gated_layer(module: Any, memory: Memory) -> GatedDeltaLayer:
    return GatedDeltaLayer(
        **_delta_arguments(module, memory),
        gate="softplus",
        A_log=module.A_log.detach(),
        dt_bias=module.dt_bias.detach(),
    )


FAMILIES = (
    Family(
        op="gated_delta",
        module=f"{_FOLDER}.gdn_backend",
        dispatcher="GDNKernelDispatcher",
        backend="GDNAttnBackend",
        layer=_gated_layer,
        call=GatedDeltaCall,
        decays=lambda module: (module.num_v_heads,),
        window=lambda pool: pool,
        activation=None,
    ),
    Family(
        op="kda",
        module=f"{_FOLDER}.kda_backend",
        dispatcher="KDAKernelDispatcher",
        backend="KDAAttnBackend",
        layer=_kimi_layer,
        call=KdaCall,
        decays=lambda module: (module.num_v_heads, module.head_k_dim),
        window=lambda pool: pool.transpose(-1, -2),
        activation="silu",
    ),
)
"""Gated delta rule and Kimi delta attention. `Version.linear_ops` says which of them the bridge serves."""
