"""Records, compares and prescribes the experts that the routers of a model choose.

If two experts have almost equal logits, a rounding error decides which of them a router chooses. The two
experts have different results, which affect the sequence's states and keys. So later logits can differ by far
more than the rounding error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from switchrail.engine import Engine
from switchrail.engine.models.operations import _ATTRIBUTE
from torch import nn


@dataclass
class Choices:
    """The experts of each layer for each token of some sequences.

    Attributes:
        found: Layer -> for each added group of T rows, their sequences, their positions, and their experts
            [T, K].
    """

    found: dict[int, list[tuple[list[int], list[int], torch.Tensor]]] = field(default_factory=dict)

    def add(self, layer: int, sequences: list[int], positions: list[int], experts: torch.Tensor) -> None:
        """Add the experts of T rows; `experts` is [T, K]."""
        self.found.setdefault(layer, []).append((sequences, positions, experts.cpu()))

    def of(self, sequence: int, length: int) -> torch.Tensor:
        """[layers, length, K], the experts for a sequence's first `length` tokens, sorted by number.

        Raises:
            KeyError: The experts of a token were not recorded.
        """
        layers = []
        for layer in sorted(self.found):
            known = {
                position: row
                for sequences, positions, experts in self.found[layer]
                for owner, position, row in zip(sequences, positions, experts, strict=True)
                if owner == sequence
            }
            layers.append(torch.stack([known[position] for position in range(length)]))
        return torch.stack(layers).sort(-1).values


def routers(model: nn.Module) -> list[Any]:
    """The modules that choose experts, in the order of the layers."""
    return [block.gate for block in _blocks(model)]


def _blocks(model: nn.Module) -> list[Any]:
    return [part for part in model.modules() if hasattr(part, "gate") and hasattr(part, "experts")]


@contextmanager
def recorded_engine(engine: Engine, choices: Choices) -> Iterator[None]:
    """In the block, adds the choices of an engine's eager steps. A sequence's number is its request's id."""

    def add(layer: int, experts: torch.Tensor) -> None:
        step = engine._runner.running.now
        if step is None:
            return
        ids = {request.slot: request.id for request in engine._core.sequences.live}
        slots, positions = step.sequence_ids[0].tolist(), step.position_ids[0].tolist()
        choices.add(layer, [ids[slot] for slot in slots], positions, experts)

    with ExitStack() as stack:
        for layer, block in enumerate(_blocks(engine._runner.model)):
            bound = block.__dict__.get(_ATTRIBUTE)
            if bound is None:
                handle = block.gate.register_forward_hook(
                    lambda module, args, out, layer=layer: add(layer, out[2])
                )
                stack.callback(handle.remove)
            else:
                stack.callback(setattr, bound, "function", bound.function)
                bound.function = _noting(bound.function, lambda ids, layer=layer: add(layer, ids))
        yield


def _noting(function: Callable[..., Any], add: Callable[[torch.Tensor], None]) -> Callable[..., Any]:
    """Wraps a function for the operation `Experts`: `add` first gets the experts that it will choose."""

    def noting(x: Any, logits: torch.Tensor, *args: Any, top_k: int, shared: int = 0, **kwargs: Any) -> Any:
        add(logits[:, : logits.shape[1] - shared].topk(top_k).indices)
        return function(x, logits, *args, top_k=top_k, shared=shared, **kwargs)

    return noting


@contextmanager
def recorded_batches(
    model: nn.Module, choices: Choices
) -> Iterator[Callable[[Sequence[int], Sequence[int]], None]]:
    """In the block, adds the choices of transformers' `generate` for batches padded on the left.

    Yields:
        A function to call before each batch, with the numbers of its sequences and their paddings.
    """
    batch: list[tuple[Sequence[int], Sequence[int]]] = []
    lengths = [0] * len(routers(model))

    def begin(numbers: Sequence[int], paddings: Sequence[int]) -> None:
        batch[:] = [(numbers, paddings)]
        lengths[:] = [0] * len(lengths)

    def add(layer: int, experts: torch.Tensor) -> None:
        ((numbers, paddings),) = batch
        rows = experts.unflatten(0, (len(numbers), -1))
        start = lengths[layer]
        lengths[layer] += rows.shape[1]
        for number, padding, row in zip(numbers, paddings, rows, strict=True):
            skipped = max(padding - start, 0)
            positions = range(start + skipped - padding, start + len(row) - padding)
            choices.add(layer, [number] * len(positions), [*positions], row[skipped:])

    with ExitStack() as stack:
        for layer, router in enumerate(routers(model)):
            handle = router.register_forward_hook(lambda module, args, out, layer=layer: add(layer, out[2]))
            stack.callback(handle.remove)
        yield begin


@dataclass
class Routed:
    """One pass of a model over one sequence.

    Attributes:
        experts: [layers, T, K], the experts that the routers chose, sorted by number.
        gaps: [layers, T], the distance between the K-th and the next largest router logit.
        last: [vocabulary], the logits after the last token.
    """

    experts: torch.Tensor
    gaps: torch.Tensor
    last: torch.Tensor


@torch.inference_mode()
def routed(model: Any, ids: Sequence[int], prescribed: torch.Tensor | None = None) -> Routed:
    """Run a sequence with transformers.

    Args:
        model: The model.
        ids: The sequence's tokens.
        prescribed: [layers, T, K], the experts to use in place of the routers' choices; None to use the
            routers' choices.
    """
    experts, gaps = [], []

    def note(layer: int, router: Any, out: Any) -> Any:
        logits, scores, chosen = out
        best = logits.topk(router.top_k + 1).values
        experts.append(chosen.sort(-1).values.cpu())
        gaps.append((best[:, -2] - best[:, -1]).cpu())
        if prescribed is None:
            return None
        chosen = prescribed[layer].to(chosen.device)
        weights = logits.softmax(-1).gather(-1, chosen)
        if router.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights.to(scores.dtype), chosen

    with ExitStack() as stack:
        for layer, router in enumerate(routers(model)):
            handle = router.register_forward_hook(
                lambda module, args, out, layer=layer: note(layer, module, out)
            )
            stack.callback(handle.remove)
        logits = model(torch.tensor([list(ids)], device=model.device), use_cache=False).logits[0, -1]
    return Routed(torch.stack(experts), torch.stack(gaps), logits)


def causes(experts: torch.Tensor, exact: Routed) -> list[tuple[int, int, float]]:
    """The choices that differ from the exact ones, and that no earlier difference has caused.

    A choice depends on the choices in lower layers, for the same token and for the tokens before it.

    Args:
        experts: [layers, T, K], sorted by number.
        exact: The exact choices.

    Returns:
        The layer and the position of each such choice, and the gap of the exact logits there.
    """
    differs = (experts != exact.experts).any(-1)
    # entry [l, t]: whether a choice differs in the layers up to l for the tokens up to t
    reached = differs.cummax(-1).values.cummax(0).values
    caused = torch.zeros_like(differs)
    caused[1:] = reached[:-1]
    first = (differs & ~caused).nonzero().tolist()
    return [(layer, position, exact.gaps[layer, position].item()) for layer, position in first]
