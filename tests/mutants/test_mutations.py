"""Changes are found, made and probed at the right places, and no other text changes; crashes are recorded."""

import signal

from tests.mutants.mutations import apply, find, probe, probed
from tests.mutants.trial import outcome

SOURCE = '''
LIMIT = 3  # of a module: left alone


def clip(x: int = 0) -> int:
    """Not this 1 either."""
    if x > LIMIT and x != 9:
        raise ValueError(f"{x + 1}")
    rows.append(x)
    return x - 1
'''


def test_what_is_found():
    found = [(each.function, each.kind, each.before, each.after) for each in find("a.py", SOURCE)]
    assert sorted(found) == [
        ("clip", "bool", "x > LIMIT and x != 9", "x > LIMIT or x != 9"),
        ("clip", "compare", "x != 9", "x == 9"),
        ("clip", "compare", "x > LIMIT", "x >= LIMIT"),
        ("clip", "constant", "1", "2"),
        ("clip", "constant", "9", "10"),
        ("clip", "operator", "x - 1", "x + 1"),
        ("clip", "return", "return x - 1", "return None"),
        ("clip", "statement", "raise ValueError(f'{x + 1}')", "pass"),
        ("clip", "statement", "rows.append(x)", "pass"),
    ]


def test_a_change_is_the_only_one():
    for mutation, place in find("a.py", SOURCE).items():
        lines = zip(SOURCE.splitlines(), apply(SOURCE, mutation, place).splitlines(), strict=True)
        assert [mutation.after in new for old, new in lines if old != new] == [True]


def test_probes_tell_what_is_reached_and_change_nothing():
    places = dict(enumerate(find("a.py", SOURCE).values()))
    chosen = probed(places)
    assert sorted(each for inner in chosen.values() for each in inner) == sorted(places)
    reached, rows = set(), []
    names = {"rows": rows, "_reached": lambda number: bool(reached.add(number))}
    exec(probe(SOURCE, {number: places[number] for number in chosen}), names)
    assert names["clip"](2) == 1
    assert rows == [2]
    found = {list(places.values())[each].line for number in reached for each in chosen[number]}
    assert found == {7, 9, 10}


def test_a_crash_is_recorded_with_the_test_that_ran(tmp_path):
    (tmp_path / "running").write_text("tests/test_a.py::test_b")
    crash = outcome(tmp_path, signal.SIGSEGV, 1.0)
    assert (crash["outcome"], crash["test"]) == ("killed", "tests/test_a.py::test_b")
    late = outcome(tmp_path, signal.SIGKILL, 1.0)
    assert (late["outcome"], late["test"]) == ("unfinished", "")
