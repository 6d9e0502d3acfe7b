from __future__ import annotations

import pytest

from tests.racing import TESTS, racing


@pytest.mark.parametrize(
    "test",
    [
        "hooks/test_threads.py::test_changes_from_many_threads_lose_nothing",
        "hooks/test_interleavings.py::test_adding_while_another_thread_uses_hooks",  # a helper has threads
        "engine/test_interrupts.py::test_a_cancel_at_any_place_does_not_damage_other_requests",
        "cli/test_run.py::test_interrupt",
        "spawn/test_fork.py::test_a_child_can_load",
        "cli/test_foreign.py::test_no_command_prints_control_characters",  # a fixture starts processes
        "engine/test_trial.py::test_an_exception_in_progress_ends_the_creation_of_an_engine",  # a parameter
        "loading/test_failures.py::test_a_plugin_that_fails_leaves_only_its_record",
    ],
)
def test_a_racing_test_is_found(test: str) -> None:
    assert f"{TESTS}/{test}" in racing()


def test_other_tests_of_the_same_files_are_not_found() -> None:
    found = racing()
    file, test = TESTS / "engine/test_drafts.py", "test_outputs_with_trees_are_those_without_drafts"
    assert f"def {test}(" in file.read_text()
    assert f"{file}::{test}" not in found
    assert len(found) == len(set(found)) > 150
