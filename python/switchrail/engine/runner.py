"""A loaded model with the memory that it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

import torch
from torch import nn

from switchrail._core import BoundPlan
from switchrail.dispatch import Dispatcher, Part, Prepared
from switchrail.engine.capturer import Capturer, Elsewhere
from switchrail.engine.checkpoint import Checkpoint
from switchrail.engine.compiled.blocks import Blocks
from switchrail.engine.decodes import Decodes
from switchrail.engine.graphs import Graphs
from switchrail.engine.inputs import DecodeInputs
from switchrail.engine.keys import Keys
from switchrail.engine.memory import Pools
from switchrail.engine.mixed import MixedSteps
from switchrail.engine.models.binding import Connection, connect, find_mixers, read_shapes
from switchrail.engine.models.operations import ForwardOf
from switchrail.engine.options import EngineOptions
from switchrail.engine.scheduler import Schedule
from switchrail.engine.sequences import Sequences
from switchrail.engine.step import Running, Step, StepBuilder
from switchrail.engine.watch import HookWatch
from switchrail.platforms import Platform
from switchrail.platforms.graph import Graph

_PHASES: Final = ("prefill", "decode")

_RAGGED: Final = "sequences and their lengths differ from step to step"


class Runner:
    """Runs schedules: tokens in, logits out, keys, values and states into the pools.

    Attributes:
        model: The model definition with its weights.
        pools: The memory for keys, values and states.
        dispatcher: Where the model's layers reach their backends.
        running: The step that runs.
        builder: What makes a step of a schedule.
        graphs: The steps that were captured; None: none is.
        blocks: The compiled layers; None: none is.
        hooks: What stands on the modelling module, to be cleared when the model is done with.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        bound: BoundPlan,
        options: EngineOptions,
        *,
        platform: Platform,
        forward_of: ForwardOf,
        dtype: torch.dtype,
        state_dtype: torch.dtype,
        max_length: int,
    ) -> None:
        """Allocates the pools and connects the model to its backends.

        Args:
            checkpoint: The loaded model.
            bound: Its routes, with their backends.
            options: Sizes.
            platform: Where it runs.
            forward_of: Finds the function that serves an operation there.
            dtype: Of activations, keys, values and convolution windows.
            state_dtype: Of recurrent states.
            max_length: Tokens of the longest sequence.

        Raises:
            LayoutError: The plan's layout is not the model's.
            CheckpointError: A layer does something that the engine can't do.
            ConfigError: There is not enough memory.
            PlatformError: The platform gives something that is no pool.
        """
        mixers = find_mixers(checkpoint.model, checkpoint.family, bound.plan.layout.layers)
        shapes = read_shapes(mixers)
        self.model = checkpoint.model
        self.graphs: Graphs | None = None
        self._platform = platform
        self._options = options
        self._max_length = max_length
        self.pools = Pools(
            shapes,
            options,
            platform=platform,
            max_length=max_length,
            dtype=dtype,
            state_dtype=state_dtype,
        )
        self.builder = StepBuilder(
            num_slots=options.max_sequences + 1,
            page_size=options.page_size,
            device=torch.device(platform.device),
            pin_memory=platform.hardware.pin_memory_available(),
        )
        self.dispatcher = Dispatcher(bound)
        self.running = Running()
        self.hooks = connect(
            self.model,
            mixers,
            checkpoint.family,
            Connection(self.dispatcher, self.pools, self.running),
            forward_of,
            is_compiled=options.compile == "blocks",
        )
        self.blocks: Blocks | None = None
        if options.compile == "blocks":
            self.blocks = Blocks(
                self.model,
                attrgetter(checkpoint.family.layers)(self.model),
                [layer.kind for layer in bound.plan.layout.layers],
                platform.serving,
            )

    @torch.inference_mode()
    def capture(
        self,
        bound: BoundPlan,
        eager: Mapping[str, str],
        sequences: Sequences[Any],
        graph_class: type[Graph],
        *,
        mixed: bool,
    ) -> None:
        """Captures steps.

        Args:
            bound: The routes of decodes that are captured.
            eager: The ops whose decodes can't be, and why.
            sequences: Who has which memory.
            graph_class: What captures.
            mixed: Whether steps with prompt tokens are captured, in pieces.
        """
        options, device = self._options, torch.device(self._platform.device)
        keys = Keys.of(options, self._max_length, mixed=mixed)
        capturer = Capturer(
            # not the runner: a cycle would keep a closed engine's memory until it is collected
            partial(_forward, self.model, self.dispatcher, self.running),
            graph_class,
            sequences=options.max_sequences,
        )
        inputs = DecodeInputs(
            sequences.page_table,
            sequences.last_tokens,
            sequences=options.max_sequences,
            page_size=options.page_size,
            device=device,
            pin_memory=self._platform.hardware.pin_memory_available(),
        )
        self.graphs = Graphs(
            keys,
            Decodes(capturer, self.dispatcher, bound, inputs, eager),
            MixedSteps(
                capturer,
                self.dispatcher,
                self.builder,
                sequences,
                rows=max(keys.rows, default=0),
                sequences=options.max_sequences,
                device=device,
            ),
            HookWatch(self.model),
            {
                "decode": {f"{op}.decode": reason for op, reason in eager.items()},
                "mixed": {
                    f"{op}.{phase}": _RAGGED for op in sorted(self.dispatcher.ops) for phase in _PHASES
                },
            },
        )
        self.graphs.capture()

    def run(self, schedule: Schedule, sequences: Sequences[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs a schedule's tokens: from a graph where one serves them.

        Args:
            schedule: What to run.
            sequences: Who has which memory.

        Returns:
            [R, vocabulary], a row for each decoding task, then for each whose prompt ends in this step, and
            their R slots; the next step may overwrite both.
        """
        if self.blocks is not None:
            self.blocks.look()
        found = None if self.graphs is None else self.graphs.run(schedule)
        if found is not None:
            return found
        step = self.builder.build(schedule, sequences.page_table, sequences.last_tokens)
        logits = _forward(self.model, self.dispatcher, self.running, step, step.parts)
        return logits, step.logit_slots


def _forward(
    model: nn.Module,
    dispatcher: Dispatcher,
    running: Running,
    step: Step,
    parts: Sequence[Part] | Prepared,
    elsewhere: Elsewhere | None = None,
) -> torch.Tensor:
    """Runs a step: [R, vocabulary]."""
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


__all__ = ["Runner"]
