"""SGLang's linear attention layers: gated delta rule and Kimi delta attention, with their convolutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from switchrail.adapters import needed_features
from switchrail.bridges.sglang.names import OURS, is_ours
from switchrail.bridges.sglang.routes import HeadSizes, all_have, bind_layers, modules_of
from switchrail.bridges.sglang.steps import Extended, Steps, Tracked, decode_part
from switchrail.errors import BridgeError
from switchrail.ops import (
    GatedDeltaCall,
    GatedDeltaLayer,
    KdaCall,
    KdaLayer,
    Layer,
    ShortConvCall,
    ShortConvLayer,
)
from switchrail.ops.batch import Bounds

if TYPE_CHECKING:
    from switchrail.bridges.sglang.versions import Places
    from switchrail.ops.batch import SequenceBatch
    from switchrail.runtime import Runtime

_FOLDER = "sglang.srt.layers.attention.linear"
_ACTIVATIONS: Mapping[str | None, Literal["silu"] | None] = {"silu": "silu", "swish": "silu", None: None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of linear layers, which SGLang serves with a backend of their own.

    Attributes:
        op: The op, and the kind of the layers.
        module: SGLang's module.
        dispatcher: The class in it that chooses SGLang's kernels.
        backend: The class in it that runs the layers.
        layer: Makes a layer's arguments from SGLang's layer and its pool.
        call: The class of the calls.
        decays: The axes of a token's decays.
        window: The view [slots, C, W - 1] of SGLang's pool of convolution windows.
        activation: The activation of the convolution; None: the layer's own.
    """

    op: str
    module: str
    dispatcher: str
    backend: str
    layer: Callable[[Any, torch.Tensor], Layer]
    call: Callable[..., Any]
    decays: Callable[[Any], tuple[int, ...]]
    window: Callable[[torch.Tensor], torch.Tensor]
    activation: str | None


class ServedLayers:
    """The layers of a family in one of SGLang's model runners.

    Attributes:
        asked: The user's names of Switchrail's backends, by phase.
        bound: The route plan of the layers, with its backends.
        steps: The passes of the model.
    """

    def __init__(
        self, runtime: Runtime, family: Family, backend: Any, model_runner: Any, asked: Mapping[str, str]
    ) -> None:
        """Resolves and binds the layers' backends, and checks SGLang's memory against their contracts.

        Raises:
            BridgeError: An option of the server is not supported.
            SwitchrailError: No backend fits, or the chosen one does not.
        """
        from sglang.srt.layers.radix_linear_attention import RadixLinearAttention

        self.asked = asked
        self._family = family
        self._backend = backend
        self._tokens = int(model_runner.model_config.context_len)
        modules = modules_of(model_runner.model, RadixLinearAttention)
        pools = {id: model_runner.req_to_token_pool.mamba2_layer_cache(id) for id in modules}
        if any(getattr(pool, "replayssm_d", None) is not None for pool in pools.values()):
            raise BridgeError("the option enable_linear_replayssm stores states in an unsupported form")
        self._convolutions = {id: _convolution(family, modules[id], pools[id].conv[0]) for id in modules}
        self._layers = {id: family.layer(modules[id], pools[id].temporal) for id in modules}
        needed: dict[str, set[str]] = {"short_conv": set(), family.op: set()}
        for module in modules.values():
            convolution, call, batch = self._example(module, model_runner.dtype)
            needed["short_conv"] |= needed_features("decode", convolution, batch)
            needed[family.op] |= needed_features("decode", call, batch)
        dispatcher = bind_layers(
            runtime,
            model_runner,
            family.op,
            {
                id: HeadSizes(m.head_k_dim, m.head_v_dim, m.num_q_heads, m.num_k_heads, m.num_v_heads)
                for id, m in modules.items()
            },
            asked,
            needed,
            state_dtype=next((pool.temporal.dtype for pool in pools.values()), None),
            state_layouts={family.op: "VK"},
        )
        for id in modules:
            dispatcher.add(id, self._convolutions[id])
            dispatcher.add(id, self._layers[id])
        self.bound = dispatcher.bound
        self.steps = Steps(dispatcher)
        self._checkpoints = all_have(self.bound, needed, "checkpoints")
        self._last_states: tuple[torch.Tensor, torch.Tensor] | None = None

    def begin(self, forward_batch: Any) -> None:
        """Plans an eager pass."""
        # SGLang 0.5.23 may relabel the decode rows of a data-parallel rank.
        mode = getattr(forward_batch, "logical_forward_mode", forward_batch.forward_mode)
        metadata = self._backend.forward_metadata
        if not self._layers or mode.is_idle():
            return
        if mode.is_decode():
            if "decode" in self.asked:
                self.steps.begin([decode_part(metadata.query_start_loc, metadata.mamba_cache_indices)])
        elif "prefill" in self.asked and mode.is_extend() and not mode.is_target_verify():
            extended = _extended(forward_batch, metadata, _chunk(self._backend))
            self._last_states = None if self._checkpoints else extended.last_states()
            self.steps.begin(extended.parts(checkpoints=self._checkpoints))

    def begin_graph(self, sequences: int, mode: Any, *, capture: bool) -> None:
        """Plans a pass that is recorded, or updates the plans of a recorded one."""
        if not self._layers or "decode" not in self.asked or not mode.is_decode_or_idle():
            return
        if not capture:
            self.steps.replay(sequences)
            return
        slots = self._backend.forward_metadata.mamba_cache_indices
        # SGLang's own starts give padding sequences no row, but there is one for each.
        starts = torch.arange(sequences + 1, dtype=torch.int32, device=slots.device)
        part = decode_part(starts, slots)
        self.steps.capture([part], Bounds(sequences=sequences, rows=sequences, tokens=self._tokens))

    def decode(self, module: Any, forward_batch: Any, mixed_qkv: Any, a: Any, b: Any) -> Any:
        """Runs a layer on one token of each sequence.

        SGLang may pass the projections whole, `q | k | v | z` and `b | a`, and then expects z beside the
        result.
        """
        if isinstance(mixed_qkv, tuple):
            whole, gates = mixed_qkv
            channels = module.q_dim + module.k_dim + module.v_dim
            mixed_qkv, z = whole[:, :channels], whole[:, channels:]
            b, a = gates.chunk(2, dim=-1)
            z = z.view(len(z), module.num_v_heads, module.head_v_dim)
            return self.decode(module, forward_batch, mixed_qkv, a, b), z
        out = self._run(module, mixed_qkv, a, b)
        backend = self._backend
        pool = backend.req_to_token_pool.mamba2_layer_cache(module.layer_id)
        slots = backend.forward_metadata.mamba_cache_indices
        last = self._id(module)
        backend._track_mamba_state_decode(forward_batch, pool.conv[0], pool.temporal, slots, *last)
        return out

    def extend(self, module: Any, mixed_qkv: torch.Tensor, a: Any, b: Any) -> Any:
        """Runs a layer on the tokens of prompts."""
        out = self._run(module, mixed_qkv, a, b)
        if self._last_states is not None:
            source, target = self._last_states
            pool = self._backend.req_to_token_pool.mamba2_layer_cache(module.layer_id)
            for states in (pool.conv[0], pool.temporal):
                states[target] = states[source]
        return out

    def _run(self, module: Any, mixed_qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        convolution, call = self._calls(module, mixed_qkv, a, b)
        self.steps.dispatch(convolution)
        self.steps.dispatch(call)
        out: torch.Tensor = call.out
        self.steps.zero_padding(out)
        return out.unsqueeze(0)

    def _calls(
        self, module: Any, mixed_qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[ShortConvCall, Any]:
        """A layer's calls; the second one's q, k and v are views of the first one's result."""
        count = len(mixed_qkv)
        convolved = mixed_qkv.new_empty(count, mixed_qkv.shape[1])
        q, k, v = torch.split(convolved, [module.q_dim, module.k_dim, module.v_dim], dim=-1)
        call = self._family.call(
            self._layers[module.layer_id],
            q.view(count, module.num_q_heads, module.head_q_dim),
            k.view(count, module.num_k_heads, module.head_k_dim),
            v.view(count, module.num_v_heads, module.head_v_dim),
            a.reshape(count, *self._family.decays(module)),
            b.reshape(count, module.num_v_heads),
            convolved.new_empty(count, module.num_v_heads, module.head_v_dim),
        )
        return ShortConvCall(self._convolutions[module.layer_id], mixed_qkv, convolved), call

    def _example(self, module: Any, dtype: torch.dtype) -> tuple[ShortConvCall, Any, SequenceBatch]:
        """A layer's calls for two requests, from which the needed features are read."""
        device = module.A_log.device
        mixed_qkv = torch.empty(2, module.q_dim + module.k_dim + module.v_dim, dtype=dtype, device=device)
        decays = torch.empty(2, *self._family.decays(module), dtype=dtype, device=device)
        weights = torch.empty(2, module.num_v_heads, dtype=dtype, device=device)
        indices = torch.zeros(3, dtype=torch.int32, device=device)
        batch = decode_part(indices, indices[:2]).states
        assert batch is not None
        return (*self._calls(module, mixed_qkv, decays, weights), batch)

    def _id(self, module: Any) -> tuple[int, ...]:
        """The layer's id, if SGLang's copy of states takes it since it copies all layers at once."""
        return (module.layer_id,) if hasattr(self._backend, "_track_pools") else ()


def attach(runtime: Runtime, places: Places) -> None:
    """Hooks SGLang's backends of linear layers; calls stay SGLang's unless a name of ours was chosen."""

    def keeps_states(original: Callable[..., bool], view: Any, hf_config: Any) -> bool:
        if is_ours(view.linear_attn_backend):
            view = _AsTriton(view)
        return original(view, hf_config)

    if places.extra_buffer is not None:
        runtime.hooks.add(places.extra_buffer, keeps_states, "around", source=OURS)
    for family in FAMILIES:
        if family.op in places.linear_ops:
            _attach(runtime, places, family)


def _attach(runtime: Runtime, places: Places, family: Family) -> None:
    hooks = runtime.hooks

    def plain(dispatcher: Any, *backends: Any, **named: Any) -> tuple[Any, Any]:
        """Lets SGLang's dispatcher use its default kernels where Switchrail serves."""
        triton = type(backends[0]).TRITON
        return (dispatcher, *(triton if b is not None and is_ours(b.value) else b for b in backends)), named

    def made(result: None, backend: Any, model_runner: Any) -> None:
        asked = {phase: name for phase, name in _asked(model_runner, places).items() if is_ours(name)}
        if "verify" in asked:
            raise BridgeError("Switchrail does not serve the verification of drafts in SGLang yet")
        backend.switchrail = ServedLayers(runtime, family, backend, model_runner, asked) if asked else None

    def began(result: None, backend: Any, forward_batch: Any) -> None:
        if backend.switchrail is not None:
            backend.switchrail.begin(forward_batch)

    def decode(
        original: Callable[..., Any],
        backend: Any,
        layer: Any,
        forward_batch: Any,
        mixed_qkv: Any,
        a: Any,
        b: Any,
        **more: Any,
    ) -> Any:
        served = backend.switchrail
        if served is None or "decode" not in served.asked:
            return original(backend, layer, forward_batch, mixed_qkv, a, b, **more)
        return served.decode(layer, forward_batch, mixed_qkv, a, b)

    def extend(
        original: Callable[..., Any],
        backend: Any,
        layer: Any,
        forward_batch: Any,
        mixed_qkv: Any,
        a: Any,
        b: Any,
        **more: Any,
    ) -> Any:
        served = backend.switchrail
        if served is None or "prefill" not in served.asked or forward_batch.forward_mode.is_target_verify():
            return original(backend, layer, forward_batch, mixed_qkv, a, b, **more)
        return served.extend(layer, mixed_qkv, a, b)

    def records_prompts(result: bool, backend: Any) -> bool:
        """SGLang records no prompts where ours serve them."""
        return result and (backend.switchrail is None or "prefill" not in backend.switchrail.asked)

    hooks.add(f"{family.module}.{family.dispatcher}.__init__", plain, "before", source=OURS)
    owner = f"{family.module}.{family.backend}"
    hooks.add(f"{owner}.__init__", made, "after", source=OURS)
    hooks.add(f"{owner}.init_forward_metadata", began, "after", source=OURS)
    hooks.add(f"{owner}.forward_decode", decode, "around", source=OURS)
    hooks.add(f"{owner}.forward_extend", extend, "around", source=OURS)
    for method, hook in places.graph_hooks.items():
        hooks.add(f"{owner}.{method}", hook, "after", source=OURS)
    if places.records_prompts is not None:
        hooks.add(f"{owner}.{places.records_prompts}", records_prompts, "after", source=OURS)


class _AsTriton:
    """A server's arguments with another linear backend, for which SGLang can keep states within prompts."""

    linear_attn_backend = "triton"

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def _asked(model_runner: Any, places: Places) -> dict[str, str]:
    """The names of Switchrail's backends that the user chose, by phase."""
    if places.verify_choice:
        backends = model_runner.linear_attn_backends
        found = {"decode": backends.decode, "prefill": backends.prefill, "verify": backends.verify}
    else:
        from sglang.srt.layers.attention.linear import utils

        found = {
            "decode": utils.get_linear_attn_decode_backend(),
            "prefill": utils.get_linear_attn_prefill_backend(),
        }
    return {phase: backend.value for phase, backend in found.items()}


def _convolution(family: Family, module: Any, state: torch.Tensor) -> ShortConvLayer:
    """A layer's convolution. With drafts SGLang's windows are longer; their last inputs count."""
    activation = family.activation or module.activation
    if activation not in _ACTIVATIONS:
        valid = tuple(filter(None, _ACTIVATIONS))
        raise BridgeError(
            f"layer {module.layer_id} convolves with {activation!r}; valid: {', '.join(valid)}",
            found=activation,
            valid=valid,
        )
    width = module.conv_weights.shape[1]
    return ShortConvLayer(
        weight=module.conv_weights.detach(),
        bias=None if module.bias is None else module.bias.detach(),
        state=family.window(state)[..., -(width - 1) :],
        activation=_ACTIVATIONS[activation],
    )


def _kimi_layer(module: Any, state: torch.Tensor) -> KdaLayer:
    return KdaLayer(
        state=state,
        scale=module.head_k_dim**-0.5,
        qk_l2norm=True,
        gate="softplus" if module.lower_bound is None else "sigmoid",
        A_log=module.A_log.detach().reshape(-1),
        dt_bias=module.dt_bias.detach().reshape(module.num_v_heads, module.head_k_dim),
        lower_bound=None if module.lower_bound is None else float(module.lower_bound),
        beta_scale=1.0,
    )


def _gated_layer(module: Any, state: torch.Tensor) -> GatedDeltaLayer:
    return GatedDeltaLayer(
        state=state,
        scale=module.head_k_dim**-0.5,
        qk_l2norm=True,
        gate="softplus",
        A_log=module.A_log.detach(),
        dt_bias=module.dt_bias.detach(),
        beta_scale=1.0,
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
"""The families that the bridge serves."""


def _chunk(backend: Any) -> int:
    """Tokens between the states that SGLang's prefix cache can keep."""
    return int(getattr(backend, "mamba_chunk_size", 64))


def _extended(forward_batch: Any, metadata: Any, every: int) -> Extended:
    tracked = None
    if metadata.has_mamba_track_mask:
        mask = _host(forward_batch, "mamba_prefill_track_mask_cpu", "mamba_track_mask")
        ends = _host(forward_batch, "mamba_track_seqlens_cpu", "mamba_track_seqlens")
        starts = map(int, forward_batch.extend_prefix_lens_cpu)
        tracked = Tracked(
            every=every,
            after=tuple(
                (end - start) // every * every if wanted else 0
                for wanted, end, start in zip(mask, ends, starts, strict=True)
            ),
            slots=forward_batch.mamba_track_indices,
        )
    return Extended(
        seqlens=tuple(map(int, forward_batch.extend_seq_lens_cpu)),
        cu_seqlens=metadata.query_start_loc,
        slots=metadata.mamba_cache_indices,
        started=forward_batch.extend_prefix_lens > 0,
        tracked=tracked,
    )


def _host(forward_batch: Any, copy: str, name: str) -> list[int]:
    """Numbers on the host: SGLang's own copy if there is one, which saves waiting for the device."""
    found = getattr(forward_batch, copy, None)
    return list(found) if found is not None else list(getattr(forward_batch, name).tolist())


__all__ = ["FAMILIES", "Family", "ServedLayers", "attach"]
