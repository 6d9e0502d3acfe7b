"""SGLang's linear attention layers: the gated delta rule with its convolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch

from switchrail.adapters import needed_features
from switchrail.bridges.sglang.names import OURS, is_ours
from switchrail.bridges.sglang.routes import HeadSizes, all_have, bind_layers, modules_of
from switchrail.bridges.sglang.steps import Extended, Steps, Tracked, decode_part
from switchrail.errors import BridgeError
from switchrail.ops import GatedDeltaCall, GatedDeltaLayer, ShortConvCall, ShortConvLayer
from switchrail.ops.batch import Bounds

if TYPE_CHECKING:
    from switchrail.bridges.sglang.versions import Places
    from switchrail.ops.batch import SequenceBatch
    from switchrail.runtime import Runtime

_MODULE = "sglang.srt.layers.attention.linear.gdn_backend"
_ACTIVATIONS: Mapping[str | None, Literal["silu"] | None] = {"silu": "silu", "swish": "silu", None: None}


class ServedLayers:
    """The gated delta layers of one of SGLang's model runners.

    Attributes:
        asked: The names that ask for Switchrail, by phase.
        bound: The route plan of the layers, with its backends.
        steps: The passes of the model.
    """

    def __init__(self, runtime: Runtime, backend: Any, model_runner: Any, asked: Mapping[str, str]) -> None:
        """Resolves and binds the layers' backends, and checks SGLang's memory against their contracts.

        Raises:
            BridgeError: An option of the server is not supported.
            SwitchrailError: No backend fits, or the chosen one does not.
        """
        from sglang.srt.layers.radix_linear_attention import RadixLinearAttention

        self.asked = asked
        self._backend = backend
        self._tokens = int(model_runner.model_config.context_len)
        modules = modules_of(model_runner.model, RadixLinearAttention)
        pools = {id: model_runner.req_to_token_pool.mamba2_layer_cache(id) for id in modules}
        if any(getattr(pool, "replayssm_d", None) is not None for pool in pools.values()):
            raise BridgeError("the option enable_linear_replayssm keeps states in a form of its own")
        self._convolutions = {id: _convolution(modules[id], pools[id].conv[0]) for id in modules}
        self._layers = {id: _layer(modules[id], pools[id].temporal) for id in modules}
        needed: dict[str, set[str]] = {"short_conv": set(), "gated_delta": set()}
        for module in modules.values():
            convolution, call, batch = self._example(module, model_runner.dtype)
            needed["short_conv"] |= needed_features("decode", convolution, batch)
            needed["gated_delta"] |= needed_features("decode", call, batch)
        dispatcher = bind_layers(
            runtime,
            model_runner,
            "gated_delta",
            {
                id: HeadSizes(m.head_k_dim, m.head_v_dim, m.num_q_heads, m.num_k_heads, m.num_v_heads)
                for id, m in modules.items()
            },
            asked,
            needed,
            state_dtype=next((pool.temporal.dtype for pool in pools.values()), None),
            state_layouts={"gated_delta": "VK"},
        )
        for layers in (self._convolutions, self._layers):
            for id, layer in layers.items():
                dispatcher.add(id, layer)
        self.bound = dispatcher.bound
        self.steps = Steps(dispatcher)
        self._checkpoints = all_have(self.bound, needed, "checkpoints")
        self._last_states: tuple[torch.Tensor, torch.Tensor] | None = None

    def begin(self, forward_batch: Any) -> None:
        """Plans an eager pass."""
        mode, metadata = forward_batch.forward_mode, self._backend.forward_metadata
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
        metadata = self._backend.forward_metadata
        part = decode_part(metadata.query_start_loc, metadata.mamba_cache_indices)
        self.steps.capture([part], Bounds(sequences=sequences, rows=sequences, tokens=self._tokens))

    def decode(self, module: Any, forward_batch: Any, mixed_qkv: torch.Tensor, a: Any, b: Any) -> Any:
        """Runs a layer on one token of each sequence."""
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
        return call.out.unsqueeze(0)

    def _calls(
        self, module: Any, mixed_qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[ShortConvCall, GatedDeltaCall]:
        """A layer's calls; the second one's q, k and v are views of the first one's result."""
        count = len(mixed_qkv)
        convolved = mixed_qkv.new_empty(count, mixed_qkv.shape[1])
        q, k, v = torch.split(convolved, [module.q_dim, module.k_dim, module.v_dim], dim=-1)
        call = GatedDeltaCall(
            self._layers[module.layer_id],
            q.view(count, module.num_q_heads, module.head_q_dim),
            k.view(count, module.num_k_heads, module.head_k_dim),
            v.view(count, module.num_v_heads, module.head_v_dim),
            a,
            b,
            convolved.new_empty(count, module.num_v_heads, module.head_v_dim),
        )
        return ShortConvCall(self._convolutions[module.layer_id], mixed_qkv, convolved), call

    def _example(
        self, module: Any, dtype: torch.dtype
    ) -> tuple[ShortConvCall, GatedDeltaCall, SequenceBatch]:
        """A layer's calls of two requests, to see what they need."""
        device = module.A_log.device
        mixed_qkv = torch.empty(2, module.q_dim + module.k_dim + module.v_dim, dtype=dtype, device=device)
        gates = torch.empty(2, module.num_v_heads, dtype=dtype, device=device)
        indices = torch.zeros(3, dtype=torch.int32, device=device)
        batch = decode_part(indices, indices[:2]).states
        assert batch is not None
        return (*self._calls(module, mixed_qkv, gates, gates), batch)

    def _id(self, module: Any) -> tuple[int, ...]:
        """The layer's id where SGLang copies the states of all layers at once, after the last one."""
        return (module.layer_id,) if hasattr(self._backend, "_track_pools") else ()


def attach(runtime: Runtime, places: Places) -> None:
    """Hooks SGLang's backend of gated delta layers; without one of our names its calls stay its own."""
    hooks = runtime.hooks

    def plain(dispatcher: Any, *backends: Any, **named: Any) -> tuple[Any, Any]:
        """SGLang's dispatcher is made with its default kernels where ours serve."""
        triton = type(backends[0]).TRITON
        return (dispatcher, *(triton if b is not None and is_ours(b.value) else b for b in backends)), named

    def made(result: None, backend: Any, model_runner: Any) -> None:
        asked = {phase: name for phase, name in _asked(model_runner, places).items() if is_ours(name)}
        if "verify" in asked:
            raise BridgeError("Switchrail does not serve the verification of drafts in SGLang yet")
        backend.switchrail = ServedLayers(runtime, backend, model_runner, asked) if asked else None

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

    def keeps_states(original: Callable[..., bool], view: Any, hf_config: Any) -> bool:
        if is_ours(view.linear_attn_backend):
            view = _AsTriton(view)
        return original(view, hf_config)

    if places.extra_buffer is not None:
        hooks.add(places.extra_buffer, keeps_states, "around", source=OURS)
    hooks.add(f"{_MODULE}.GDNKernelDispatcher.__init__", plain, "before", source=OURS)
    owner = f"{_MODULE}.GDNAttnBackend"
    hooks.add(f"{owner}.__init__", made, "after", source=OURS)
    hooks.add(f"{owner}.init_forward_metadata", began, "after", source=OURS)
    hooks.add(f"{owner}.forward_decode", decode, "around", source=OURS)
    hooks.add(f"{owner}.forward_extend", extend, "around", source=OURS)
    for method, hook in places.graph_hooks.items():
        hooks.add(f"{owner}.{method}", hook, "after", source=OURS)


class _AsTriton:
    """A server's arguments, with the linear backend that SGLang knows to keep states within prompts."""

    linear_attn_backend = "triton"

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def _asked(model_runner: Any, places: Places) -> dict[str, str]:
    """The names that the user asked for, by phase."""
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


def _convolution(module: Any, state: torch.Tensor) -> ShortConvLayer:
    """A layer's convolution. SGLang's windows have their inputs innermost, and more of them with drafts."""
    if module.activation not in _ACTIVATIONS:
        valid = tuple(filter(None, _ACTIVATIONS))
        raise BridgeError(
            f"layer {module.layer_id} convolves with {module.activation!r}; valid: {', '.join(valid)}",
            found=module.activation,
            valid=valid,
        )
    width = module.conv_weights.shape[1]
    return ShortConvLayer(
        weight=module.conv_weights.detach(),
        bias=None if module.bias is None else module.bias.detach(),
        state=state[..., -(width - 1) :],
        activation=_ACTIVATIONS[module.activation],
    )


def _layer(module: Any, state: torch.Tensor) -> GatedDeltaLayer:
    return GatedDeltaLayer(
        state=state,
        scale=module.head_k_dim**-0.5,
        qk_l2norm=True,
        gate="softplus",
        A_log=module.A_log.detach(),
        dt_bias=module.dt_bias.detach(),
        beta_scale=1.0,
    )


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
    """Numbers on the host: SGLang's own copy if it has one, which spares waiting for the device."""
    found = getattr(forward_batch, copy, None)
    return list(found) if found is not None else list(getattr(forward_batch, name).tolist())


__all__ = ["ServedLayers", "attach"]
