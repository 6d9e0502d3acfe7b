"""The benchmark of drafts with forced acceptance, as a small CPU run."""

from __future__ import annotations

import json

from switchrail.testing import isolated

from benchmarks import drafts


def test_forced_acceptance_of_every_kind_of_draft(tmp_path, monkeypatch):
    """With each kind of draft, tokens are accepted, and fewer steps run than without drafts."""
    monkeypatch.setattr(drafts, "NEW_TOKENS", 24)
    file = tmp_path / "rows.json"
    with isolated():
        drafts.main(["--tiny", "--part", "forced", "--batch", "2", "--json", str(file)])
    rows = json.loads(file.read_text())["forced"]
    assert [row["draft"] for row in rows] == ["none", *drafts.ACCEPTED]
    assert all(row["right"] == 1 for row in rows)
    plain, *others = rows
    assert plain["accepted"] == 0
    for row in others:
        assert row["accepted"] > 0
        assert row["steps"] < plain["steps"]
