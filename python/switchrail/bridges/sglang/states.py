"""Runs a model runner's linear and convolution layers on SGLang's pools of states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from switchrail.adapters import needed_features
from switchrail.bridges.sglang.routes import HeadSizes, all_have, bind_layers, planned_together
from switchrail.bridges.sglang.steps import Extended, Steps, Tracked, decode_part
from switchrail.errors import BridgeError
from switchrail.ops.batch import Bounds
from switchrail.ops.short_conv.contract import ShortConvLayer

if TYPE_CHECKING:
    from switchrail.bridges.sglang.drafts import Drafts
    from switchrail.bridges.sglang.versions import Version
    from switchrail.dispatch import Dispatcher, Part
    from switchrail.ops import Layer
    from switchrail.ops.batch import Phase
    from switchrail.runtime import Runtime

_ACTIVATIONS: Mapping[str | None, Literal["silu"] | None] = {"silu": "silu", "swish": "silu", None: None}


@dataclass(frozen=True, slots=True)
class Memory:
    """A layer's part of SGLang's pools of states.

    Attributes:
        windows: The convolution windows, the last inputs of the convolution.
        states: The recurrent states.
        row_windows: The windows after each drafted token; None without drafts.
        row_states: The recurrent states after each drafted token; None without drafts.
    """

    windows: torch.Tensor
    states: torch.Tensor
    row_windows: torch.Tensor | None = None
    row_states: torch.Tensor | None = None


class Kind(ABC):
    """A kind of layers with states. Makes the arguments of ops from SGLang's modules of this kind.

    Attributes:
        op: The main op, which is also the name of the kind in a layout.
        ops: The ops of a layer, in the order in which it calls them.
        state_layout: The order of the axes of the recurrent states; None if there are none.
    """

    op: str
    ops: tuple[str, ...]
    state_layout: str | None

    @abstractmethod
    def modules(self, model: torch.nn.Module) -> dict[int, Any]:
        """SGLang's modules of this kind, by layer id."""

    @abstractmethod
    def heads(self, module: Any) -> HeadSizes | None:
        """The heads of a layer; None if the layer has no heads."""

    @abstractmethod
    def layers(self, module: Any, memory: Memory) -> tuple[Layer, ...]:
        """The constant arguments of a layer's ops."""

    @abstractmethod
    def example(self, module: Any, layers: tuple[Any, ...], rows: int, dtype: torch.dtype) -> tuple[Any, ...]:
        """Calls of a layer's ops on some rows. They show which features the backends need."""


class UnknownLayersError(BridgeError):
    """A model has layers with states, but none of a kind that Switchrail serves."""


class ServedLayers:
    """The layers of one kind in one of SGLang's model runners.

    Attributes:
        asked: The chosen name for each phase: `switchrail`, or `switchrail:NAME` for the backend NAME.
        steps: The passes of the model.
    """

    def __init__(
        self,
        runtime: Runtime,
        version: Version,
        kind: Kind,
        backend: Any,
        model_runner: Any,
        asked: Mapping[Phase, str],
        drafts: Drafts | None,
    ) -> None:
        """Resolves and binds the layers' backends, and checks SGLang's memory against their contracts.

        Raises:
            UnknownLayersError: The model has layers with states, but none of this kind.
            BridgeError: An option of the server is not supported.
            SwitchrailError: No backend fits, or the chosen backend does not.
        """
        self.asked = asked
        self._backend = backend
        self._drafts = drafts
        self._tokens = int(model_runner.model_config.context_len)
        self._modules = kind.modules(model_runner.model)
        if not self._modules and backend.req_to_token_pool.mamba_map and not model_runner.is_draft_worker:
            raise UnknownLayersError(
                f"{type(model_runner.model).__name__} has no {kind.op} layers that Switchrail knows"
            )
        self._kept = 0
        self._layers: dict[Phase, dict[int, tuple[Layer, ...]]] = {}
        dispatchers: dict[Phase, Dispatcher] = {}
        for group in planned_together(version, model_runner, asked):
            dispatcher = self._bind(runtime, version, kind, model_runner, group)
            dispatchers.update(dict.fromkeys(group, dispatcher))
        if "prefill" in dispatchers:
            self._checkpoints = all_have(dispatchers["prefill"].bound, kind.ops, "checkpoints")
        self.steps = Steps(dispatchers)
        self._last_states: tuple[torch.Tensor, torch.Tensor] | None = None

    def _bind(
        self, runtime: Runtime, version: Version, kind: Kind, model_runner: Any, asked: Mapping[Phase, str]
    ) -> Dispatcher:
        drafts = self._drafts if "verify" in asked else None
        pools = {id: self._backend.req_to_token_pool.mamba2_layer_cache(id) for id in self._modules}
        layers = {
            id: kind.layers(module, self._memory(pools[id], drafts)) for id, module in self._modules.items()
        }
        self._layers.update(dict.fromkeys(asked, layers))
        needed: dict[str, set[str]] = {op: set() for op in kind.ops}
        state_dtype = None
        for id, module in self._modules.items():
            pool = pools[id]
            state_dtype = pool.temporal.dtype if kind.state_layout else None
            slots = torch.zeros(2, dtype=torch.int32, device=pool.conv[0].device)
            if drafts is None:
                part = decode_part(torch.zeros(3, dtype=torch.int32, device=slots.device), slots)
            else:
                part = drafts.states(slots, None, self._kept)
            assert part.states is not None
            calls = kind.example(module, layers[id], part.rows.stop, model_runner.dtype)
            for op, call in zip(kind.ops, calls, strict=True):
                needed[op] |= needed_features(part.phase, call, part.states)
        dispatcher = bind_layers(
            runtime,
            version,
            model_runner,
            kind.op,
            {id: kind.heads(module) for id, module in self._modules.items()},
            asked,
            needed,
            state_dtype=state_dtype,
            state_layouts={kind.op: kind.state_layout} if kind.state_layout else {},
        )
        for id in self._modules:
            for layer in layers[id]:
                dispatcher.add(id, layer)
        return dispatcher

    def _memory(self, pool: Any, drafts: Drafts | None) -> Memory:
        if getattr(pool, "replayssm_d", None) is not None:
            raise BridgeError("the option enable_linear_replayssm stores states in an unsupported form")
        if drafts is None:
            return Memory(pool.conv[0], pool.temporal)
        states, windows = pool.intermediate_ssm, pool.intermediate_conv_window
        if states is None:
            raise BridgeError("the option enable_linear_replayssm_spec keeps no states of drafts")
        self._kept = len(states)
        return Memory(pool.conv[0], pool.temporal, windows[0].flatten(0, 1), states.flatten(0, 1))

    def layers(self, id: int) -> tuple[Any, ...]:
        """The constant arguments of a layer's ops in the current pass."""
        return self._layers[self.steps.phase][id]

    def serves(self, forward_batch: Any) -> bool:
        """Whether Switchrail serves the phase of a pass."""
        return _phase(_mode_of(forward_batch)) in self.asked

    def run(self, id: int, forward_batch: Any, *calls: Any) -> None:
        """Runs a layer's calls; the last one has the result."""
        for call in calls:
            self.steps.dispatch(call)
        self.steps.zero_padding(calls[-1].out)
        self._track(id, forward_batch)

    def begin(self, forward_batch: Any) -> None:
        """Plans an eager pass."""
        mode = _mode_of(forward_batch)
        metadata = self._backend.forward_metadata
        phase = _phase(mode)
        if not self._modules or mode.is_idle() or phase not in self.asked:
            self.steps.drop()
            return
        if phase == "decode":
            self.steps.begin([decode_part(metadata.query_start_loc, metadata.mamba_cache_indices)])
        elif phase == "verify":
            self.steps.begin([self._verify_part(metadata)])
        else:
            # the number of tokens between two states that SGLang's prefix cache can keep
            every = int(getattr(self._backend, "mamba_chunk_size", 64))
            extended = _extended(forward_batch, metadata, every)
            self._last_states = None if self._checkpoints else extended.last_states()
            self.steps.begin(extended.parts(checkpoints=self._checkpoints))

    def begin_graph(self, sequences: int, mode: Any, *, capture: bool) -> None:
        """Plans a pass for the capture of a graph, or updates the plans of a captured pass."""
        phase = "decode" if mode.is_decode_or_idle() else _phase(mode)
        if not self._modules or phase is None or phase not in self.asked:
            return
        metadata = self._backend.forward_metadata
        if not capture:
            self._replay(phase, sequences)
            return
        if phase == "verify":
            part = self._verify_part(metadata)
        else:
            slots = metadata.mamba_cache_indices
            # Not SGLang's cu_seqlens: it leaves out padding sequences, but a captured pass runs them.
            part = decode_part(torch.arange(sequences + 1, dtype=torch.int32, device=slots.device), slots)
        self.steps.capture(part, Bounds(sequences=sequences, rows=part.rows.stop, tokens=self._tokens))

    def reread_drafts(self, sequences: int) -> None:
        """Updates a captured verification that was planned before the drafts were known."""
        if self._drafts is not None and self._drafts.tree and "verify" in self.asked and self._modules:
            self._replay("verify", sequences)

    def _replay(self, phase: Phase, sequences: int) -> None:
        part = self.steps.captured(phase, sequences)
        if phase == "verify":
            found = self._verify_part(self._backend.forward_metadata).states
            part.states.parents.copy_(found.parents)  # type: ignore[union-attr]
        self.steps.replay(part)

    def _verify_part(self, metadata: Any) -> Part:
        assert self._drafts is not None
        return self._drafts.states(metadata.mamba_cache_indices, metadata, self._kept)

    def _track(self, id: int, forward_batch: Any) -> None:
        """Copies a layer's states for SGLang's prefix cache, after the layer ran."""
        phase = self.steps.phase
        if phase == "verify" or (phase == "prefill" and self._last_states is None):
            return
        backend = self._backend
        pool = backend.req_to_token_pool.mamba2_layer_cache(id)
        if phase == "decode":
            slots = backend.forward_metadata.mamba_cache_indices
            # Where SGLang copies the states of all layers together, the method also takes the layer's id.
            last = (id,) if hasattr(backend, "_track_pools") else ()
            backend._track_mamba_state_decode(forward_batch, pool.conv[0], pool.temporal, slots, *last)
        elif self._last_states is not None:
            source, target = self._last_states
            for states in (pool.conv[0], pool.temporal):
                states[target] = states[source]


def _mode_of(forward_batch: Any) -> Any:
    """The mode of a pass. SGLang 0.5.23 may relabel the decode rows of a data-parallel rank as prompts."""
    return getattr(forward_batch, "logical_forward_mode", forward_batch.forward_mode)


def _phase(mode: Any) -> Phase | None:
    """The phase of a mode; None if Switchrail does not serve the mode."""
    if mode.is_decode():
        return "decode"
    if not mode.is_extend():
        return None
    return "verify" if mode.is_target_verify() else "prefill"


def convolution(
    weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None, memory: Memory
) -> ShortConvLayer:
    """The constant arguments of a convolution with weight [C, W]. Uses the last W - 1 inputs of each window.

    Raises:
        BridgeError: Switchrail has no such activation.
    """
    if activation not in _ACTIVATIONS:
        valid = tuple(filter(None, _ACTIVATIONS))
        raise BridgeError(
            f"the activation of a convolution is {activation!r}; valid: {', '.join(valid)}",
            found=activation,
            valid=valid,
        )
    inputs = weight.shape[1] - 1
    rows = memory.row_windows
    return ShortConvLayer(
        weight=weight.detach(),
        bias=None if bias is None else bias.detach(),
        state=memory.windows[..., -inputs:],
        row_states=None if rows is None else rows[..., -inputs:],
        activation=_ACTIVATIONS[activation],
    )


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
    """The values of a batch's tensor `name`; from SGLang's copy on the host, if any, without a wait."""
    found = getattr(forward_batch, copy, None)
    return list(found) if found is not None else list(getattr(forward_batch, name).tolist())
