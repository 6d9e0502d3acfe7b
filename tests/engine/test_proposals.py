"""Proposals captured in one graph each, which is launched before the host knows which drafts are accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine import Engine, SamplingParams
from switchrail.engine.draft_model import DraftModel
from switchrail.engine.drafts import Drafted, Drafts
from switchrail.engine.flight import Sent
from switchrail.testing.graph import RecordedGraph
from torch.utils._python_dispatch import TorchDispatchMode

from .capturable import CAPTURABLE
from .conftest import Plain, make_checkpoint
from .drafting import FORCED, Oracle, Trees, using
from .heads import FULL, LINEAR, make_head
from .idle import is_idle
from .test_drafts import DRAFTED, OPTIONS
from .test_graphs import GraphPlatform
from .test_overlap import make_prompts

Make = Callable[..., Engine]
SMALL = {**DRAFTED, "max_sequences": 4, "max_tokens_per_step": 24}
"""Three sequences are padded to four, and most prompts are chunked."""
FREE = SamplingParams(max_new_tokens=24, ignore_eos=True)
"""24 tokens take at least five verifications of at most four drafts each."""
REFUSED = SamplingParams(max_new_tokens=8, ignore_eos=True)
"""For drafts that are mostly refused, so that nearly every token takes a verification."""
WAITS = {
    torch.ops.aten.item.default,
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
}


@pytest.fixture(scope="session")
def checkpoint(small_checkpoint: Path) -> Path:
    return small_checkpoint


def make_runtime() -> switchrail.Runtime:
    """A runtime whose backends can be captured in proposals and in verifications."""
    runtime = switchrail.Runtime()
    runtime.use_platform(GraphPlatform())
    for op, backend in CAPTURABLE.items():
        bounds = ("kv_bounds",) * (op == "attention")
        trees = ("trees",) * (op == "attention")
        for phase, features in (("decode", ()), ("verify", ("device_parents", *trees))):
            runtime.register(
                f"capturable-{phase}",
                backend,
                op=op,
                phases=(phase,),
                features=("cuda_graph", *bounds, *features),
                priority=-1,
            )
    return runtime


class Replaced(Drafts):
    """Records the greedy proposals of drafts, and proposes the tokens of an oracle, if given, instead."""

    are_trees = True

    def __init__(self, drafts: DraftModel, oracle: Oracle | None) -> None:
        self.drafts, self.oracle = drafts, oracle
        self.ahead = drafts.ahead
        self.found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def look_ahead(self, tasks: Any, verified: Any) -> None:
        self.drafts.look_ahead(tasks, verified)

    def propose(self, tasks: Any, limits: Any) -> Drafted:
        proposal = self.drafts.propose(tasks, limits)
        self.found += [
            ((*task.ids.tolist(), *task.tokens), tuple(map(int, tokens)))
            for task, tokens in zip(tasks, proposal.tokens, strict=True)
            if len(tokens) and task.params.temperature == 0
        ]
        return proposal if self.oracle is None else self.oracle.propose(tasks, limits)


def drafts_of(engine: Engine) -> DraftModel:
    drafts = engine._core.drafts
    assert isinstance(drafts, DraftModel)
    return drafts


@pytest.fixture(scope="session", params=["linear first", "full first", "linear only", "head", "linear head"])
def drafted(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """A checkpoint and the option `draft`: models of several layouts, and heads."""
    folder = tmp_path_factory.mktemp("drafted")
    if "head" in request.param:
        return make_head(checkpoint, folder, [LINEAR if "linear" in request.param else FULL]), "mtp"
    kinds = {"linear first": [LINEAR, FULL], "full first": [FULL, LINEAR], "linear only": [LINEAR]}
    kind = kinds[request.param]
    changes = {"num_hidden_layers": len(kind), "layer_types": kind, "hidden_size": 32}
    return checkpoint, make_checkpoint(folder, seed=9, **changes)


@pytest.fixture(scope="module", params=[1, 2], ids=["chains", "trees"])
def engines(request: pytest.FixtureRequest, drafted: tuple[Path, Any]) -> Iterator[tuple[Engine, Engine]]:
    """An engine without graphs, and one that captures its proposals."""
    path, draft = drafted
    options = {**SMALL, "draft": draft, "draft_branches": request.param}
    with (
        Engine(path, runtime=switchrail.Runtime(), device="cpu", options=options) as eager,
        Engine(path, runtime=make_runtime(), device=GraphPlatform(), options=options) as capturing,
    ):
        yield eager, capturing


@pytest.mark.parametrize("half", [0, 1])
def test_proposals_are_those_of_eager_steps(
    request: pytest.FixtureRequest,
    half: int,
    engines: tuple[Engine, Engine],
    plain_engine: Callable[..., Plain],
) -> None:
    """Proposals from graphs equal those without graphs, whatever was accepted before, in ragged batches with
    chunked prompts.

    With an oracle in place of the draft's own proposals, the accepted tokens differ from the draft's. Each
    draft in each shape has two of the four kinds of accepted tokens. So there are all pairs of a draft and a
    kind, and models and heads each have all pairs of a shape and a kind.
    """
    place = request.node.callspec.indices
    kind = ["own", *FORCED][(place["drafted"] + place["engines"]) % 2 * 2 + half]
    prompts, params = make_prompts(9), REFUSED if kind in ("own", "none") else FREE
    expected = plain_engine(OPTIONS).generate(prompts, params)
    found = []
    for engine in engines:
        drafts = engine._core.drafts
        assert isinstance(drafts, DraftModel)
        oracle = None
        if kind != "own":
            oracle = (Trees if engine.options.draft_branches > 1 else Oracle)(
                expected, FORCED[kind], ragged=kind == "random"
            )
        replaced = Replaced(drafts, oracle)
        with using(engine, replaced):
            assert engine.generate(prompts, params) == expected
        assert is_idle(engine)
        found.append(dict(replaced.found))
    graphs = drafts.runner.graphs
    assert graphs is not None
    assert not graphs.refused
    assert {key.kind for key in graphs.captured} == {"decode", "mixed", "propose"}
    assert len(found[1]) > 30
    both = found[0].keys() & found[1].keys()
    assert len(both) > 30
    assert {text: found[1][text] for text in both} == {text: found[0][text] for text in both}


class Launches(TorchDispatchMode):
    """Counts graphs and other operations that the host launches, its reads of tokens, and its other waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.graphs = self.operations = self.reads = self.waits = 0
        self._within = False
        replay, read = RecordedGraph.replay, Sent.read

        def counted(graph: RecordedGraph) -> None:
            self.graphs += 1
            self._within = True
            try:
                replay(graph)
            finally:
                self._within = False

        def reading(sent: Sent) -> list[int]:
            self.reads += sent._tokens is None
            return read(sent)

        monkeypatch.setattr(RecordedGraph, "replay", counted)
        monkeypatch.setattr(Sent, "read", reading)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._within:
            self.waits += function in WAITS
            self.operations += not function.is_view
        return function(*args, **(kwargs or {}))


def test_a_step_launches_four_graphs_and_reads_once(
    make_engine: Make, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graphs are a verification, the acceptance, the copy of the accepted tokens, and the next proposal;
    then the host reads the tokens.

    Without captured proposals, each step of the draft is launched separately.
    """
    options = {**OPTIONS, "draft": "mtp", "max_sequences": 1, "max_tokens_per_step": 8}
    path = make_head(checkpoint, tmp_path)
    found = []
    for at_once in (True, False):
        engine = make_engine(path, runtime=make_runtime(), device=GraphPlatform(), options=options)
        drafts = drafts_of(engine)
        if not at_once:
            drafts._form = None
        request = engine.submit([5, 6, 7], SamplingParams(max_new_tokens=40, ignore_eos=True))
        while len(request.tokens) < 10:
            engine.step()
        launches = Launches(monkeypatch)
        with launches:
            for _ in range(3):
                engine.step()
        monkeypatch.undo()
        assert launches.reads == 3
        if at_once:
            assert launches.waits == 0
        found.append((launches.graphs, launches.operations))
    assert found[0][0] == 3 * 4
    assert found[0] < found[1]
