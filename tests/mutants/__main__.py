"""Mutation testing: changes the code in a hundred places, one at a time, and runs tests that reach each one.

    python -m tests.mutants cover      # records which tests reach which change, in one run of all tests
    python -m tests.mutants run        # runs the tests of each change, the fastest first, until one fails
    python -m tests.mutants check      # runs on unchanged code the tests that noticed a change
    python -m tests.mutants show       # prints the list

The changes are drawn with a seed, a fixed number per area. `cover` keeps the changes of `list.json` that
still apply, and draws others to replace the rest. `run` writes each outcome to the list.

Existing libraries were considered. mutmut doesn't change decorated functions such as kernels, and hides the
source of other functions from Triton. cosmic-ray runs all tests for each change.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.mutants.mutations import Mutation, Place, find, probe, probed
from tests.mutants.trial import Trial, run_trials

ROOT = Path(__file__).parents[2]
WORK = (ROOT / "target" / "mutants").resolve()
UNFIT = WORK / "unfit.json"
LIST = Path(__file__).with_name("list.json")
AREAS = {
    "python/switchrail/engine": 25,
    "python/switchrail/hooks": 25,
    "python/switchrail/plugins": 20,
    "kernels/switchrail_kernels": 30,
}
"""The number of changes per area."""
NO_PROOF = ("tests/conformance/test_mutants.py", "tests/conformance/test_mutants_triton.py")
"""Files whose tests search for a source line by its text, and so fail for any change of that line."""
SPARE = 4
"""The ratio of drawn to needed changes. More are drawn because tests reach only some lines."""
# Appended to the `__init__.py` of a copy's packages. Records which test reached which change, in this process
# and in those that tests start.
REACHED = """
def _install():
    import builtins, os
    if hasattr(builtins, "_reached"):
        return
    seen = set()
    def reached(number):
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        if (number, test) not in seen:
            seen.add((number, test))
            with open(f"{folder}/{os.getpid()}", "a") as file:
                file.write(f"{number} {test}\\n")
        return False
    folder = FOLDER
    builtins._reached = reached
_install()
del _install
"""


def copy_tree(to: Path) -> None:
    """Copy the repository's current files, with the built extension module."""
    shutil.rmtree(to, ignore_errors=True)
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    built = [str(path.relative_to(ROOT)) for path in (ROOT / "python").rglob("*.so")]
    for name in [*filter(None, names), *built]:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def environment(tree: Path) -> dict[str, str]:
    """The environment variables that make Python import a copy's packages instead of the installed ones."""
    path = os.pathsep.join(map(str, (tree / "python", tree / "kernels")))
    return os.environ | {"PYTHONPATH": path}


def draw(tree: Path, seed: int) -> dict[str, list[Mutation]]:
    """The changes of each area: first those of the list that still exist, then others in random order."""
    listed = [Mutation(**each["mutation"]) for each in read_list()]
    drawn = {}
    for area, count in AREAS.items():
        there: dict[Mutation, None] = {}
        for path in sorted((tree / area).rglob("*.py")):
            there |= dict.fromkeys(find(str(path.relative_to(tree)), path.read_text()))
        kept = [each for each in listed if each in there]
        others = [each for each in there if each not in set(kept)]
        random.Random(f"{seed} {area}").shuffle(others)
        drawn[area] = kept + others[: SPARE * count]
    return drawn


def read_list() -> list[dict[str, Any]]:
    """The list: each change, its outcome, and the test that noticed it, if any."""
    return json.loads(LIST.read_text()) if LIST.exists() else []


def cover(seed: int, workers: int, arguments: list[str]) -> None:
    """Run the tests in a copy that records which of them reach each change."""
    tree, record, reached = WORK / "cover", WORK / "record", WORK / "reached"
    copy_tree(tree)
    for folder in (record, reached):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    drawn = draw(tree, seed)
    numbered = dict(enumerate(each for several in drawn.values() for each in several))
    stands_for: dict[int, list[int]] = {}
    for file in sorted({each.file for each in numbered.values()}):
        source = (tree / file).read_text()
        found = find(file, source)
        places: dict[int, Place] = {
            number: found[each] for number, each in numbered.items() if each.file == file
        }
        chosen = probed(places)
        stands_for |= chosen
        (tree / file).write_text(probe(source, {number: places[number] for number in chosen}))
    for package in ("python/switchrail", "kernels/switchrail_kernels"):
        first = tree / package / "__init__.py"
        first.write_text(first.read_text() + REACHED.replace("FOLDER", repr(str(reached))))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.record", "-p", "no:cacheprovider"]
    command += ["-n", str(workers), *arguments]
    variables = environment(tree) | {"TEST_RECORD": str(record)}
    subprocess.run(command, cwd=tree, env=variables, check=False)
    (WORK / "drawn.json").write_text(
        json.dumps(
            {
                "numbered": {number: each.as_dict() for number, each in numbered.items()},
                "stands_for": stands_for,
            }
        )
    )


def read_tests() -> dict[str, dict[str, Any]]:
    """The line that `record.py` wrote for each test in `cover`, by the test's name.

    Tests that did not pass there, that failed in `check`, or that are in a file of `NO_PROOF` are left out.
    """
    texts = [path.read_text() for path in (WORK / "record").glob("*.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    passed = {line["test"]: line for line in lines if line["outcome"] == "passed"}
    unfit = set(json.loads(UNFIT.read_text())) if UNFIT.exists() else set()
    return {
        test: line for test, line in passed.items() if test not in unfit and not test.startswith(NO_PROOF)
    }


def read_reached(stands_for: dict[str, list[int]], tests: dict[str, Any]) -> dict[int, set[str]]:
    """The tests that reach each change.

    Code that a test reaches during its setup or teardown counts for all tests of the test's file.
    """
    by_file = defaultdict(set)
    for test in tests:
        by_file[test.partition("::")[0]].add(test)
    found: dict[int, set[str]] = defaultdict(set)
    for path in (WORK / "reached").iterdir():
        for line in path.read_text().splitlines():
            number, _, rest = line.partition(" ")
            test, _, when = rest.rpartition(" ")
            reaching = {test} if when == "(call)" else by_file[test.partition("::")[0]]
            for each in stands_for[number]:
                found[each] |= reaching & tests.keys()
    return found


def choose() -> list[Trial]:
    """The first changes of each area that a test reaches, each with the costs of the tests that reach it."""
    drawn = json.loads((WORK / "drawn.json").read_text())
    tests = read_tests()
    reached = read_reached(drawn["stands_for"], tests)
    left = dict(AREAS)
    trials = []
    for number, fields in drawn["numbered"].items():
        mutation = Mutation(**fields)
        area = next(each for each in AREAS if mutation.file.startswith(f"{each}/"))
        if left[area] and reached.get(int(number)):
            left[area] -= 1
            costs = {test: tests[test]["own"] + tests[test]["children"] for test in reached[int(number)]}
            trials.append(Trial(mutation, costs))
    print(f"{len(trials)} changes; missing: { ({k: v for k, v in left.items() if v}) }")
    return trials


def run(workers: int, seconds: float, only: str, left: bool) -> None:
    """Try each change, and record the outcome.

    Args:
        workers: Concurrent trials.
        seconds: Maximum CPU time of a change's tests.
        only: Only changes whose `FILE:FUNCTION` contains this.
        left: Only changes that are not listed, that no test noticed, or whose test is not in `read_tests`.
    """
    trials = [each for each in choose() if only in f"{each.mutation.file}:{each.mutation.function}"]
    noticed = {
        json.dumps(each["mutation"])
        for each in read_list()
        if each["outcome"] == "killed" and (each["test"] in read_tests() or "::" not in each["test"])
    }
    if left:
        trials = [each for each in trials if json.dumps(each.mutation.as_dict()) not in noticed]
    print(f"{len(trials)} changes to try")
    trees = [WORK / f"tree-{number}" for number in range(workers)]
    for tree in trees:
        copy_tree(tree)
        folders = [str(tree / name) for name in ("python", "kernels", "tests")]
        subprocess.run([sys.executable, "-m", "compileall", "-q", *folders], check=False)
    results = {json.dumps(each["mutation"]): each for each in (read_list() if only or left else [])}
    for trial, outcome in run_trials(trials, trees, seconds):
        line = {"mutation": trial.mutation.as_dict(), **outcome, "tests": len(trial.costs)}
        results[json.dumps(line["mutation"])] = line
        shown = f"{outcome['outcome']}: {describe(trial.mutation)}: {outcome['test']}"
        print(f"{shown} ({outcome['wall']:.0f} s; {len(trial.costs)} tests reach it)", flush=True)
        ordered = sorted(results.values(), key=lambda each: json.dumps(each["mutation"]))
        LIST.write_text(json.dumps(ordered, indent=1) + "\n")
    show()


def check(workers: int) -> None:
    """Run the listed tests on unchanged code. Those that fail there prove nothing and are left out later."""
    for tree in (trees := [WORK / f"tree-{number}" for number in range(workers)]):
        copy_tree(tree)
    tests = read_tests()
    used = {each["test"] for each in read_list()} & tests.keys()
    trial = Trial(None, dict.fromkeys(sorted(used), 0.0))
    for _, outcome in run_trials([trial], trees, 1.0):
        failed = outcome["test"].split("\n") if outcome["test"] else []
        print(f"{len(used)} tests, {outcome['outcome']}; these fail on unchanged code: {failed}")
        known = json.loads(UNFIT.read_text()) if UNFIT.exists() else []
        UNFIT.write_text(json.dumps(sorted({*known, *failed})))


def describe(mutation: Mutation) -> str:
    """One line that describes a change."""
    return f"{mutation.file}: {mutation.function}: {mutation.before!r:.120} -> {mutation.after!r:.120}"


def show() -> None:
    """Print the list, by area, and the changes that no test noticed."""
    listed = read_list()
    for area in AREAS:
        there = [each for each in listed if each["mutation"]["file"].startswith(f"{area}/")]
        killed = [each for each in there if each["outcome"] == "killed"]
        print(f"{area}: {len(killed)} of {len(there)} noticed")
        for each in there:
            if each not in killed:
                print(f"  {each['outcome']}: {describe(Mutation(**each['mutation']))}")


def main() -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("cover", "run", "check", "show"))
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="maximum CPU time of a change's tests")
    parser.add_argument("--only", default="", help="only changes whose FILE:FUNCTION contains this")
    parser.add_argument("--left", action="store_true", help="only changes that no existing test noticed")
    options, arguments = parser.parse_known_args()
    match options.command:
        case "cover":
            cover(options.seed, options.workers, arguments)
        case "run":
            run(options.workers, options.seconds, options.only, options.left)
        case "check":
            check(options.workers)
        case "show":
            show()


if __name__ == "__main__":
    main()
