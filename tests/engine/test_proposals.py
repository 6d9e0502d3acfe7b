"""Whole proposals in one graph, also launched before the host knows which drafts were accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail.engine import Engine
from switchrail.engine.draft_model import DraftModel
from switchrail.engine.drafts import Drafted, Drafts

from .capturable import CAPTURABLE
from .conftest import make_checkpoint
from .drafting import FORCED, Oracle, Trees, use
from .heads import FULL, LINEAR, make_head
from .idle import is_idle
from .test_drafts import DRAFTED, FREE, OPTIONS
from .test_graphs import GraphPlatform
from .test_overlap import make_prompts

Make = Callable[..., Engine]


@pytest.fixture
def runtime() -> switchrail.Runtime:
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
    """Lets drafts propose, records what they do, and proposes the tokens of an oracle instead."""

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


@pytest.mark.parametrize("branches", [1, 2], ids=["chains", "trees"])
@pytest.mark.parametrize("kind", ["own", *FORCED])
def test_proposals_are_those_of_eager_steps(
    kind: str,
    branches: int,
    make_engine: Make,
    drafted: tuple[Path, Any],
    runtime: switchrail.Runtime,
) -> None:
    """Whatever was accepted before, in ragged batches whose prompts run in chunks.

    With an oracle in place of the draft's own proposals, accepted tokens are others than the draft's.
    """
    path, draft = drafted
    prompts = make_prompts(12)
    expected = make_engine(path, options=OPTIONS).generate(prompts, FREE)
    options = {**DRAFTED, "draft": draft, "draft_branches": branches}
    found = []
    for given in ({}, {"runtime": runtime, "device": GraphPlatform()}):
        engine = make_engine(path, options=options, **given)
        drafts = drafts_of(engine)
        oracle = None
        if kind != "own":
            oracle = (Trees if branches > 1 else Oracle)(expected, FORCED[kind], ragged=kind == "random")
        replaced = Replaced(drafts, oracle)
        use(engine, replaced)
        assert engine.generate(prompts, FREE) == expected
        assert is_idle(engine)
        found.append(dict(replaced.found))
        if given:
            graphs = drafts.runner.graphs
            assert graphs is not None
            assert not graphs.refused
            assert {key.kind for key in graphs.captured} == {"decode", "mixed", "propose"}
    assert len(found[1]) > 60
    both = found[0].keys() & found[1].keys()
    assert len(both) > 60
    assert {text: found[1][text] for text in both} == {text: found[0][text] for text in both}
