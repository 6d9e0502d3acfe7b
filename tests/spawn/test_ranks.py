"""Ranks of a job compare their states; none waits forever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail.errors import RankError

from tests.distributions import write_distribution
from tests.processes import Helper

PROGRAM = Path(__file__).parent / "userland" / "userland_ranks.py"
RANKS = 4
PLUGIN = """
import dataclasses

@dataclasses.dataclass
class Config:
    scale: float = 1.0

def register(registry):
    registry.register("one", "acme_one:One", op="kda", config=Config)
"""
SCENARIOS: dict[str, dict[str, Any]] = {
    "alike": {"ranks": {}, "sites": ["one"]},
    "default": {"ranks": {}, "sites": [], "default": True},
    "differ": {"ranks": {1: "configuration"}, "sites": ["one", "two", "three"]},
    "more": {"ranks": {1: "hook", 2: "platform", 3: "plan"}, "sites": []},
    "most": {"ranks": {0: "hook"}, "sites": ["one"]},
    "group": {"ranks": {1: "hook", 2: "backend"}, "sites": ["one"], "members": [0, 2]},
    "lazy": {"ranks": {2: "lazy"}, "sites": [], "default": True},
    "gone": {"ranks": {1: "late", 3: "gone"}, "sites": [], "timeout": 5},
    "unserved": {"ranks": {0: "gone"}, "sites": []},
}


def install(folder: Path, distribution: str, code: str, version: str = "1.0") -> None:
    write_distribution(folder, distribution, code, plugin=distribution, version=version)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, processes: Helper) -> list[dict[str, Any]]:
    """Each rank's result in each scenario.

    Rank 2 has another version of a plugin; a plugin of rank 3 fails.
    """
    folder = tmp_path_factory.mktemp("job")
    (folder / "scenarios.json").write_text(json.dumps(SCENARIOS))
    for rank in range(RANKS):
        own = folder / f"rank{rank}"
        install(own / "one", "acme-one", PLUGIN)
        install(own / "two", "acme-two", "def register(registry): pass", "1.1" if rank == 2 else "1.0")
        install(
            own / "three",
            "acme-three",
            "raise OSError('no driver')" if rank == 3 else "def register(r): pass",
        )
    done = processes.run(PROGRAM.read_text(), [folder, RANKS])
    assert len([*folder.glob("*.json")]) == RANKS + 1, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def test_ranks_that_are_alike(results: list[dict[str, Any]]) -> None:
    for scenario in ("alike", "default"):
        [fingerprint] = {result[scenario]["fingerprint"] for result in results}
        assert len(fingerprint) == 64
    assert results[0]["alike"] != results[0]["default"]


def common(
    results: list[dict[str, Any]], scenario: str, ranks: range | list[int] = range(RANKS)
) -> dict[str, Any]:
    """The error that each of these ranks raised, the same on all."""
    found = [results[rank][scenario] for rank in ranks]
    assert all(each == found[0] for each in found)
    assert found[0]["type"] == "RankError"
    return found[0]


def test_ranks_that_differ(results: list[dict[str, Any]]) -> None:
    result = common(results, "differ")
    version = "plugin acme-two:acme-two: version is '1.1', not '1.0'"
    assert result["ranks"] == {
        "1": ["kda backend 'one': configured scale is 2.0, not None"],
        "2": [version],
        "3": ["plugin acme-three:acme-three: state is 'failed', not 'loaded' (OSError: no driver)"],
    }
    assert f"rank 2: {version}" in result["error"]


def test_ranks_that_differ_in_more(results: list[dict[str, Any]]) -> None:
    ranks = common(results, "more")["ranks"]
    assert set(ranks) == {"1", "2", "3"}
    assert ranks["1"] == ["before hook builtins.print of 'user' on textwrap.dedent: it is unexpected"]
    assert ranks["2"] == ["platform: choice is 'cuda 8.0', not 'cpu'"]
    differences = "\n".join(ranks["3"])
    assert "plan 1: preferences is {'attention.decode': 'reference'}, not {}" in differences
    assert (
        "plan 1: attention decode by layers is {'reference': [0, 1, 2]}, not {'torch': [0, 1, 2]}"
        in differences
    )


def test_the_majority_of_ranks_counts(results: list[dict[str, Any]]) -> None:
    assert set(common(results, "most")["ranks"]) == {"0"}


def test_a_rank_whose_load_fails(results: list[dict[str, Any]]) -> None:
    ranks = common(results, "lazy")["ranks"]
    assert set(ranks) == {"2"}
    [problem] = ranks["2"]
    assert problem.startswith("it failed: UnknownPluginError: ")
    assert "acme-nowhere" in problem


def test_a_group_of_some_ranks(results: list[dict[str, Any]]) -> None:
    assert common(results, "group", [0, 2])["ranks"] == {"2": ["kda backend 'more': it is unexpected"]}
    assert not any("group" in results[rank] for rank in (1, 3))


def test_a_rank_that_never_comes(results: list[dict[str, Any]]) -> None:
    assert common(results, "gone", [0, 1, 2])["ranks"] == {"3": ["it did not report within 5 s"]}
    assert "gone" not in results[3]


def test_a_store_whose_process_has_ended(results: list[dict[str, Any]]) -> None:
    """Ranks fail if the process that hosts the store has ended.

    Rank 0 hosts the store. Rank 3 has already ended.
    """
    for rank in (1, 2):
        assert results[rank]["unserved"]["type"] == "RankError"
        assert "the job's store does not answer" in results[rank]["unserved"]["error"]


def test_without_a_job(runtime: switchrail.Runtime) -> None:
    with pytest.raises(RankError, match="init_process_group"):
        switchrail.check_ranks(runtime)
