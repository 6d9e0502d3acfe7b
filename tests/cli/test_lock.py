"""`lock` writes a lock of the installed distributions, and `lock --check` reports later changes."""

import json

import pytest

from tests.distributions import write_distribution


@pytest.fixture
def installed(tmp_path, monkeypatch):
    info = write_distribution(tmp_path, "boreal-gdn", "def register(registry): ...\n", plugin="boreal")
    (info / "RECORD").write_text("boreal_gdn.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_lock_is_written_and_held_to(switchrail, installed, monkeypatch):
    monkeypatch.chdir(installed)
    done = switchrail("lock")
    assert (done.exit_code, done.output.split(", ")[0]) == (0, "switchrail.lock: boreal-gdn")
    done = switchrail("lock", "--check")
    assert (done.exit_code, done.output) == (0, "the installation matches the lock\n")
    (installed / "boreal_gdn.py").write_text("")
    done = switchrail("lock", "--check")
    told = "boreal-gdn differs from the lock: files changed: boreal_gdn.py\n"
    assert (done.exit_code, done.output) == (1, told)


def test_json_output_of_lock_and_its_check(switchrail, installed):
    file = installed / "some.lock"
    done = switchrail("lock", "--output", file, "--json")
    assert json.loads(done.output) == json.loads(file.read_text())
    assert json.loads(switchrail("lock", "--check", "-o", file, "--json").output) == []
    (installed / "boreal_gdn.py").unlink()
    done = switchrail("lock", "--check", "-o", file, "--json")
    (difference,) = json.loads(done.output)
    assert done.exit_code == 1
    assert difference["changes"] == [{"kind": "file_missing", "path": "boreal_gdn.py"}]


def test_the_environment_names_the_file(switchrail, installed, monkeypatch):
    monkeypatch.setenv("SWITCHRAIL_LOCK", str(installed / "named.lock"))
    done = switchrail("lock", "--check")
    assert done.exit_code == 2
    assert "named.lock cannot be read" in done.output
    assert switchrail("lock").exit_code == 0
    assert (installed / "named.lock").exists()
