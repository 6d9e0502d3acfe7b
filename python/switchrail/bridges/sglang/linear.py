"""SGLang's linear attention layers: the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from switchrail.bridges.sglang.names import OURS, is_ours
from switchrail.bridges.sglang.routes import HeadSizes, all_have, bind_layers, modules_of
from switchrail.bridges.sglang.steps import Extended, Steps, Tracked, decode_part
from switchrail.dispatch import Dispatcher
from switchrail.errors import BridgeError
from switchrail.ops import GatedDeltaCall, GatedDeltaLayer
from switchrail.ops.batch import Bounds
from switchrail.ops.delta import activate_beta, activate_gate

if TYPE_CHECKING:
    from switchrail.bridges.sglang.versions import Places
    from switchrail.runtime import Runtime

_MODULE = "sglang.srt.layers.attention.linear.gdn_backend"


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
        self.asked = asked
        self._backend = backend
        self._tokens = int(model_runner.model_config.context_len)
        modules = modules_of(model_runner.model, _layer_class())
        pools = {id: model_runner.req_to_token_pool.mamba2_layer_cache(id) for id in modules}
        for pool in pools.values():
            if getattr(pool, "replayssm_d", None) is not None:
                raise BridgeError("the option enable_linear_replayssm keeps states in a form of its own")
        self.bound = bind_layers(
            runtime,
            model_runner,
            "gated_delta",
            "gated_delta",
            modules,
            asked,
            [
                HeadSizes(m.head_k_dim, m.head_v_dim, m.num_q_heads, m.num_k_heads, m.num_v_heads)
                for m in modules.values()
            ],
            state_dtype=_only({pool.temporal.dtype for pool in pools.values()}),
            state_layouts={"gated_delta": "VK"},
        )
        self._checkpoints = all_have(self.bound, "gated_delta", "checkpoints")
        raw = all_have(self.bound, "gated_delta", "raw_gates")
        self._gates: dict[int, GatedDeltaLayer] = {}
        self._layers: dict[int, GatedDeltaLayer] = {}
        dispatcher = Dispatcher(self.bound, ["gated_delta"])
        for id, module in modules.items():
            gates = self._gates[id] = _layer(module, pools[id].temporal, raw=True)
            layer = self._layers[id] = gates if raw else _layer(module, pools[id].temporal, raw=False)
            dispatcher.add(id, layer)
        self.steps = Steps(dispatcher)

    def begin(self, forward_batch: Any) -> None:
        """Plans an eager pass."""
        mode, metadata = forward_batch.forward_mode, self._backend.forward_metadata
        if not self._layers or mode.is_idle():
            return
        if mode.is_decode():
            if "decode" in self.asked:
                slots = metadata.mamba_cache_indices.to(torch.int64)
                self.steps.begin([decode_part(metadata.query_start_loc, slots)])
        elif "prefill" in self.asked and mode.is_extend() and not mode.is_target_verify():
            self._extended = _extended(forward_batch, metadata, _chunk(self._backend))
            self.steps.begin(self._extended.parts(checkpoints=self._checkpoints))

    def begin_graph(self, sequences: int, mode: Any, *, capture: bool) -> None:
        """Plans a pass that is recorded, or updates the plans of a recorded one."""
        if not self._layers or "decode" not in self.asked or not mode.is_decode_or_idle():
            return
        metadata = self._backend.forward_metadata
        parts = [decode_part(metadata.query_start_loc, metadata.mamba_cache_indices.to(torch.int64))]
        if capture:
            bounds = Bounds(sequences=sequences, rows=sequences, tokens=self._tokens)
            self.steps.capture(parts, bounds)
        else:
            self.steps.replay(sequences, parts)

    def decode(self, module: Any, forward_batch: Any, mixed_qkv: torch.Tensor, a: Any, b: Any) -> Any:
        """Runs a layer on one token of each sequence."""
        backend, metadata = self._backend, self._backend.forward_metadata
        pool = backend.req_to_token_pool.mamba2_layer_cache(module.layer_id)
        convolved = _module().causal_conv1d_update(
            mixed_qkv,
            pool.conv[0],
            module.conv_weights,
            module.bias,
            module.activation,
            conv_state_indices=metadata.mamba_cache_indices,
        )
        out = self._run(module, convolved, a, b)
        backend._track_mamba_state_decode(
            forward_batch, pool.conv[0], pool.temporal, metadata.mamba_cache_indices, module.layer_id
        )
        return out

    def extend(self, module: Any, forward_batch: Any, mixed_qkv: torch.Tensor, a: Any, b: Any) -> Any:
        """Runs a layer on the tokens of prompts."""
        backend, metadata = self._backend, self._backend.forward_metadata
        pool = backend.req_to_token_pool.mamba2_layer_cache(module.layer_id)
        if self._extended.tracked is not None:
            rows = mixed_qkv[metadata.track_conv_indices].transpose(1, 2)
            pool.conv[0][metadata.conv_states_mask_indices] = rows
        convolved = (
            _module()
            .causal_conv1d_fn(
                mixed_qkv.transpose(0, 1),
                module.conv_weights,
                module.bias,
                activation=module.activation,
                conv_states=pool.conv[0],
                has_initial_state=self._extended.started,
                cache_indices=metadata.mamba_cache_indices,
                query_start_loc=metadata.query_start_loc,
                seq_lens_cpu=forward_batch.extend_seq_lens_cpu,
            )
            .transpose(0, 1)[: len(mixed_qkv)]
        )
        out = self._run(module, convolved, a, b)
        if self._extended.tracked is not None and not self._checkpoints and self._extended.finals():
            index = torch.tensor(self._extended.finals()).to(out.device, non_blocking=True)
            pool.temporal[self._extended.tracked.slots[index]] = pool.temporal[self._extended.slots[index]]
        return out

    def _run(self, module: Any, convolved: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        count = len(convolved)
        q, k, v = convolved.split([module.q_dim, module.k_dim, module.v_dim], dim=-1)
        layer, gates = self._layers[module.layer_id], self._gates[module.layer_id]
        if layer is not gates:
            a = activate_gate(a, gates, torch.float32)
            b = activate_beta(b, gates.beta_scale, torch.float32)
        out = convolved.new_empty(count, module.num_v_heads, module.head_v_dim)
        self.steps.dispatch(
            GatedDeltaCall(
                layer,
                q.view(count, module.num_q_heads, module.head_q_dim),
                k.view(count, module.num_k_heads, module.head_k_dim),
                v.view(count, module.num_v_heads, module.head_v_dim),
                a,
                b,
                out,
            )
        )
        return out.unsqueeze(0)


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
        return served.extend(layer, forward_batch, mixed_qkv, a, b)

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


def _layer_class() -> type:
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention

    return RadixLinearAttention  # type: ignore[no-any-return]


def _only(dtypes: set[torch.dtype]) -> torch.dtype | None:
    """The one dtype of all layers' pools; None without layers."""
    return next(iter(dtypes), None)


def _module() -> Any:
    import sglang.srt.layers.attention.linear.gdn_backend as module

    return module


def _layer(module: Any, state: torch.Tensor, *, raw: bool) -> GatedDeltaLayer:
    gates = (
        {
            "gate": "softplus",
            "A_log": module.A_log.detach(),
            "dt_bias": module.dt_bias.detach(),
            "beta_scale": 1.0,
        }
        if raw
        else {}
    )
    return GatedDeltaLayer(state=state, scale=module.head_k_dim**-0.5, qk_l2norm=True, **gates)


def _chunk(backend: Any) -> int:
    """Tokens between the states that SGLang's prefix cache can keep."""
    return int(getattr(backend, "mamba_chunk_size", 64))


def _extended(forward_batch: Any, metadata: Any, every: int) -> Extended:
    seqlens = tuple(map(int, forward_batch.extend_seq_lens_cpu))
    tracked = None
    if metadata.has_mamba_track_mask:
        mask = forward_batch.mamba_track_mask.tolist()
        ends = forward_batch.mamba_track_seqlens.tolist()
        starts = map(int, forward_batch.extend_prefix_lens_cpu)
        tracked = Tracked(
            every=every,
            after=tuple(
                (end - start) // every * every if wanted else 0
                for wanted, end, start in zip(mask, ends, starts, strict=True)
            ),
            slots=forward_batch.mamba_track_indices.to(torch.int64),
        )
    return Extended(
        seqlens=seqlens,
        cu_seqlens=metadata.query_start_loc,
        slots=metadata.mamba_cache_indices.to(torch.int64),
        started=forward_batch.extend_prefix_lens > 0,
        tracked=tracked,
    )


__all__ = ["ServedLayers", "attach"]
