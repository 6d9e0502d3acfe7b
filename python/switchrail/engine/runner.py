"""A loaded model with its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from switchrail._core import BoundPlan
from switchrail.dispatch import Dispatcher, Part, Prepared
from switchrail.engine.accept import accept, accept_rows
from switchrail.engine.capture import DEFERRED, CapturePlan, commits, has_trees
from switchrail.engine.capturer import Capturer, Elsewhere
from switchrail.engine.checkpoint import Checkpoint
from switchrail.engine.decodes import Decodes
from switchrail.engine.deferred import DeferredCommits
from switchrail.engine.graphs import Graphs
from switchrail.engine.inputs import DecodeInputs, Tables, decode_rows
from switchrail.engine.memory import Needs, Pools
from switchrail.engine.mixed import MixedSteps
from switchrail.engine.models.binding import Connection, connect, find_mixers, read_shapes
from switchrail.engine.models.blocks import Blocks
from switchrail.engine.models.operations import ForwardOf
from switchrail.engine.options import EngineOptions
from switchrail.engine.proposals import Form, Proposals
from switchrail.engine.sampling import Choose
from switchrail.engine.scheduler import Schedule
from switchrail.engine.sequences import Sequences
from switchrail.engine.step import Ran, Running, Step, StepBuilder
from switchrail.engine.verifications import Verifications
from switchrail.engine.verify_inputs import VerifyInputs, verify_rows
from switchrail.engine.watch import HookWatch
from switchrail.platforms import Platform
from switchrail.platforms.graph import Graph
from switchrail.platforms.operations import AcceptRows, DecodeRows, VerifyRows
from switchrail.pools import pages_of


@dataclass(frozen=True, slots=True)
class Capture:
    """The steps that a runner captures, with their backends.

    Attributes:
        plan: The steps to capture, and their routes.
        bound: The routes of captured decodes, with their backends.
        graph_class: The class of the graphs.
        verify: The routes of captured verifications, with their backends; None if these are not captured.
        propose: The routes of decodes and of verifications in captured proposals; None if these are not
            captured.
    """

    plan: CapturePlan
    bound: BoundPlan
    graph_class: type[Graph]
    verify: BoundPlan | None = None
    propose: tuple[BoundPlan, BoundPlan] | None = None


class Runner:
    """Runs schedules: maps tokens to logits, and writes keys, values and states to the pools.

    Attributes:
        model: The model definition with its weights.
        pools: The memory for keys, values and states.
        dispatcher: Dispatches the layers' calls to backends.
        running: The current step.
        builder: Converts schedules to steps.
        graphs: The captured steps; None without capturing.
        choose: The function that graphs may contain to choose tokens; None if graphs choose no tokens.
        blocks: The compiled layers; None without compiling.
        sequences: The sequences, which own slots and pages.
        vocab_size: Rows of the model's embedding.
        pin_memory: Whether the device copies from pinned memory asynchronously.
        disconnect: Disconnects the model; to be called before another runner uses the model, or when the
            model is no longer used.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        bound: BoundPlan,
        options: EngineOptions,
        *,
        working: int | None = None,
        beside: Needs | None = None,
        sequences: Sequences[Any] | None = None,
        platform: Platform,
        forward_of: ForwardOf,
        dtype: torch.dtype,
        state_dtype: torch.dtype,
        max_length: int,
    ) -> None:
        """Allocate the pools and connect the model to its backends.

        Args:
            checkpoint: The loaded model.
            bound: The model's routes, with their backends.
            options: The engine's options.
            working: Bytes that steps need in addition to the pools; None if unknown.
            beside: See `Pools`.
            sequences: The sequences of another runner, to be shared. That runner's pools have as many pages,
                and at most as many slots. None creates new sequences.
            platform: The platform of the model.
            forward_of: Finds the platform's function for an operation.
            dtype: The dtype of activations, keys, values and convolution windows.
            state_dtype: The dtype of recurrent states.
            max_length: Maximum tokens per sequence.

        Raises:
            LayoutError: The plan's layout does not match the model.
            CheckpointError: A layer uses something that the engine does not support.
            ConfigError: There is not enough memory.
            PlatformError: The platform returns an invalid pool class or invalid memory sizes.
        """
        mixers = find_mixers(checkpoint.model, checkpoint.family, bound.plan.layout.layers)
        shapes = read_shapes(mixers)
        self.model = checkpoint.model
        self.vocab_size = checkpoint.vocab_size
        self.pin_memory = platform.hardware.pin_memory_available()
        self.graphs: Graphs | None = None
        self.choose: Choose | None = None
        self._derived = forward_of(DecodeRows) or decode_rows
        self._verified = forward_of(VerifyRows) or verify_rows
        self._options = options
        self.pools = Pools(
            shapes,
            options,
            working=working,
            beside=beside,
            platform=platform,
            max_length=max_length,
            dtype=dtype,
            state_dtype=state_dtype,
        )
        self.builder = StepBuilder(
            num_slots=options.max_sequences + 1,
            page_size=options.page_size,
            device=torch.device(platform.device),
            pin_memory=self.pin_memory,
        )
        self.dispatcher = Dispatcher(bound, flags=options.step_flags)
        self.running = Running()
        self.sequences: Sequences[Any] = sequences or Sequences(
            self.pools.pages,
            self.pools.slots,
            page_size=options.page_size,
            max_pages=pages_of(max_length, options.page_size),
            device=torch.device(platform.device),
            pin_memory=self.pin_memory,
        )
        self.disconnect = connect(
            self.model,
            mixers,
            checkpoint.family,
            Connection(self.dispatcher, self.pools, self.running),
            forward_of,
            is_compiled=options.compile == "blocks",
        )
        self._accept = partial(
            accept,
            accepted=forward_of(AcceptRows) or accept_rows,
            commit=self.dispatcher.commit,
            pools=self.pools,
            last_tokens=self.sequences.last_tokens,
        )
        self.blocks: Blocks | None = None
        if options.compile == "blocks":
            try:
                self.blocks = Blocks(
                    self.model,
                    checkpoint.family.layers_of(self.model),
                    [layer.kind for layer in bound.plan.layout.layers],
                    platform.serving,
                )
            except BaseException:
                self.disconnect()
                raise

    @property
    def nbytes(self) -> int:
        """Bytes of the pools and the page table."""
        return self.pools.nbytes + self.sequences.page_table.nbytes

    @torch.inference_mode()
    def prepare_graphs(
        self,
        capture: Capture,
        choose: Choose | None = None,
        *,
        last_tokens: torch.Tensor | None = None,
        apart: int = 0,
        form: Form | None = None,
    ) -> Graphs:
        """Create `graphs`, without capturing anything yet.

        Args:
            capture: The steps to capture.
            choose: See `Decodes`.
            last_tokens: [slots] int64, the newest tokens; None for `sequences.last_tokens`.
            apart: See `DecodeInputs`.
            form: How a draft model proposes; None for other models.
        """
        self.choose = choose
        options, sequences, plan = self._options, self.sequences, capture.plan
        width = 1 if options.draft is None else 1 + options.draft_tokens
        # no reference to the runner: a reference cycle would keep a closed engine's memory until the next
        # garbage collection
        forward = partial(_forward, self.model, self.dispatcher, self.running)
        capturer = Capturer(forward, capture.graph_class, rows=options.max_sequences * width)
        tables = Tables(
            sequences.page_table,
            sequences.last_tokens if last_tokens is None else last_tokens,
            sequences=options.max_sequences,
            page_size=options.page_size,
            pin_memory=self.pin_memory,
        )
        verifications = None
        if capture.verify is not None:
            verifications = Verifications(
                capturer,
                self.dispatcher,
                capture.verify,
                VerifyInputs(
                    tables,
                    width=width,
                    are_trees=has_trees(options),
                    derived=self._verified,
                    deferred=self._deferred_commits(capture.verify, width),
                ),
                partial(self._accept, again=True),
                choose,
            )
        decode_inputs = partial(DecodeInputs, tables, self._derived, apart)
        proposals = None
        if capture.propose is not None and form is not None:
            proposals = Proposals(
                form,
                capturer,
                forward,
                self.dispatcher,
                capture.propose,
                decode_inputs(),
                tables,
                self._verified,
            )
        self.graphs = Graphs(
            plan,
            Decodes(capturer, self.dispatcher, capture.bound, decode_inputs(), plan.eager, plan.keys, choose),
            MixedSteps(
                capturer,
                self.dispatcher,
                self.builder,
                tables,
                self._accept,
                rows=max(plan.keys.rows, default=0),
            ),
            verifications,
            proposals,
            HookWatch(self.model),
        )
        return self.graphs

    def _deferred_commits(self, verify: BoundPlan, width: int) -> DeferredCommits | None:
        """The deferred commits of captured verifications; None if commits are not deferred."""
        if DEFERRED not in commits(verify.plan).values():
            return None
        last_tokens = self.sequences.last_tokens
        return DeferredCommits(slots=len(last_tokens), width=width, device=last_tokens.device)

    def run(self, schedule: Schedule) -> Ran:
        """Run a schedule's tokens, from a graph if there is one."""
        if self.blocks is not None:
            self.blocks.look()
        found = None if self.graphs is None else self.graphs.run(schedule)
        if found is not None:
            return found
        step = self.builder.build(schedule, self.sequences.page_table, self.sequences.last_tokens)
        logits = self.forward(step)
        if step.drafts is None:
            return Ran(logits, step.logit_slots)
        widths = step.drafts.widths
        keep = partial(self._accept, step, slots=step.logit_slots[: len(widths)])
        return Ran(logits, step.logit_slots, widths, keep)

    def forward(self, step: Step) -> torch.Tensor:
        """Run a step eagerly; return its logits, [R, vocabulary]."""
        return _forward(self.model, self.dispatcher, self.running, step, step.parts)


def _forward(
    model: nn.Module,
    dispatcher: Dispatcher,
    running: Running,
    step: Step,
    parts: Sequence[Part] | Prepared,
    elsewhere: Elsewhere | None = None,
) -> torch.Tensor:
    """Run a step; return its logits, [R, vocabulary]."""
    try:
        running.now = step
        with dispatcher.running(parts, elsewhere):
            logits: torch.Tensor = model(
                input_ids=step.input_ids,
                attention_mask=None,
                position_ids=step.position_ids,
                past_key_values=None,
                use_cache=False,
                logits_to_keep=step.logit_rows,
            ).logits
    finally:
        running.now = None
    return logits.squeeze(0)
