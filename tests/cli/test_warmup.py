"""`switchrail warmup`: rounds of prompts that each run twice, and the reported state of the graphs."""

import json

import pytest
from switchrail.engine import Engine
from switchrail.engine.capture import GraphState


@pytest.fixture
def small(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("[engine]\nmax_length = 40\nmax_sequences = 3\n")
    return config


@pytest.fixture
def tiny(tmp_path):
    """For tests in which only the last lines matter."""
    config = tmp_path / "config.toml"
    config.write_text("[engine]\nmax_length = 5\nmax_sequences = 1\n")
    return config


def test_rounds_fit_the_engine(switchrail, checkpoint, small):
    done = switchrail("warmup", checkpoint, "--device", "cpu", "--config", small, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["graphs"] == []
    assert [(one["prompts"], one["longest"]) for one in document["rounds"]] == [
        *((1, length) for length in (1, 2, 3, 15, 16, 17, 37)),
        *((3, 3), (2, 37), (3, 37)),
    ]
    assert all(one["first"] > 0 < one["second"] for one in document["rounds"])


def test_printed_lines(switchrail, checkpoint, tiny):
    done = switchrail("warmup", checkpoint, "--device", "cpu", "--config", tiny)
    assert done.exit_code == 0, done.output
    assert "first run" in done.stdout
    assert "0 of 0 steps captured" in done.stdout


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_refused_capture_fails(switchrail, checkpoint, tiny, monkeypatch, options):
    kept = {"backends": {}, "because": {}, "eager": {}, "commits": {}}
    state = GraphState(kind="decode", rows=1, tokens=40, reason="no memory", **kept)
    monkeypatch.setattr(Engine, "graphs", (state,))
    done = switchrail("warmup", checkpoint, "--device", "cpu", "--config", tiny, *options)
    assert done.exit_code == 1, done.output
    assert "no memory" in done.stdout
