"""Choice by measurement: timing, the times file, and the choices of `auto`."""

import json
import math
import re
from pathlib import Path

import pytest
import switchrail
from switchrail.errors import ArgumentError, TimesError
from switchrail.ops.short_conv.torch import TorchShortConv
from switchrail.testing import isolated
from switchrail.times import (
    as_arguments,
    device_of,
    measurements_for,
    read_machines,
    times_path,
    write_machine,
)
from switchrail.tune import ATTEMPTS, machine, tune
from switchrail.tune.clock import Time


class Clock:
    """A clock that advances by a millisecond with each reading, and by the time of each call of `Slow`."""

    seconds = 0.0

    def perf_counter(self):
        self.seconds += 1e-3
        return self.seconds


class Slow(TorchShortConv):
    clock = Clock()

    def run(self, call, batch, plan):
        self.clock.seconds += 0.02
        return super().run(call, batch, plan)


class Wrong(TorchShortConv):
    def run(self, call, batch, plan):
        super().run(call, batch, plan)
        call.out.mul_(1.01)


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCHRAIL_TIMES", str(tmp_path / "times.json"))
    monkeypatch.setattr("switchrail.tune.clock.time", Slow.clock)
    with isolated() as runtime:
        runtime.register("slow", Slow, op="short_conv", priority=10)
        runtime.register("wrong", Wrong, op="short_conv", priority=5)
        runtime.register("elsewhere", Slow, op="short_conv", devices=("cuda",), priority=5)
        yield runtime


@pytest.fixture
def platform(runtime):
    return runtime.find_platform("cpu")


@pytest.fixture
def timings(runtime, platform):
    return list(tune(runtime, platform, ops=("short_conv",), phases=("decode",), dtypes=("float32",)))


def mean(timing, name):
    """The geometric mean of a backend's times over the batches, in nanoseconds, with noisy times
    increased."""
    (counted,) = as_arguments([timing.to_dict()])
    times = [sample["nanoseconds"][name] for sample in counted["samples"]]
    return math.exp(sum(map(math.log, times)) / len(times))


def chosen(runtime, platform, **arguments):
    decision = runtime.resolve("short_conv", "decode", device=platform, dtype="float32", **arguments)
    return decision.chosen, decision.because


def test_measured_times_decide(runtime, platform, timings):
    assert chosen(runtime, platform) == ("slow", "highest priority that fits (10)")
    (timing,) = timings
    assert timing.ways == {"slow": "host", "torch": "host"}
    assert [str(batch) for batch in timing.samples] == ["1 x 1 rows", "4 x 1 rows", "16 x 1 rows"]
    assert all(times["slow"] > 2e7 for times in timing.samples.values())
    assert all(times["slow"] > times["torch"] > 0 for times in timing.samples.values())
    assert timing.left_out["wrong"].startswith(
        "it fails short_conv/decode/float32/ragged: short_conv: out is off"
    )
    assert "\n" not in timing.left_out["wrong"]
    assert timing.left_out["elsewhere"].startswith("does not run on cpu")
    assert "reference" not in timing.left_out

    write_machine(times_path(), machine(runtime, platform, timings), runtime._loader.installed().packages)
    name, because = chosen(runtime, platform)
    assert name == "torch"
    told = re.fullmatch(r"fastest that fits, as measured here \((.*) us\)", because)
    assert float(told[1]) == pytest.approx(mean(timing, "torch") / 1000, abs=0.06)
    decision = runtime.resolve("short_conv", "decode", device=platform, dtype="float32")
    reasons = {other.name: other.reasons for other in decision.rejected}
    assert reasons["slow"][0].startswith("fits, but takes ")
    assert reasons["wrong"][0].startswith("fits, but was not measured here")
    assert chosen(runtime, "cpu") == ("slow", "highest priority that fits (10)")
    assert chosen(runtime, platform, measurements=()) == ("slow", "highest priority that fits (10)")
    samples = timing.to_dict()["samples"]
    assert [(sample["rows"], sample["length"]) for sample in samples] == [(1, 1), (4, 1), (16, 1)]
    assert chosen(runtime, platform, preferences={"short_conv": "slow"})[0] == "slow"
    assert chosen(runtime, platform, preferences={"short_conv": "auto"})[0] == "torch"
    other = runtime.resolve("short_conv", "prefill", device=platform, dtype="float32")
    assert other.chosen == "slow"


def test_a_plan_uses_times_and_says_so(runtime, platform, timings):
    write_machine(times_path(), machine(runtime, platform, timings), runtime._loader.installed().packages)
    config = {
        "model_type": "qwen3_next",
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention"] * 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_conv_kernel_dim": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "hidden_size": 32,
        "head_dim": 16,
    }
    layout = switchrail.Layout.from_config(config)
    plan = runtime.plan(layout, device=platform, dtype="float32")
    served = {(route.decision.op, route.decision.phase): route.decision for route in plan.routes}
    assert served["short_conv", "decode"].chosen == "torch"
    assert served["short_conv", "prefill"].chosen == "slow"
    request = plan.to_dict()["request"]
    assert [measured["op"] for measured in request["measurements"]] == ["short_conv"]
    again = runtime.plan(layout, device="cpu", dtype="float32", measurements=request["measurements"])
    assert again.table == plan.table


@pytest.mark.parametrize("change", ["torch", "device"])
def test_another_version_or_device_falls_back_to_priorities(runtime, platform, timings, change):
    found = machine(runtime, platform, timings)
    assert set(found["packages"]) >= {"switchrail", "torch"}
    if change == "device":
        found["device"]["name"] = "another"
    else:
        found["packages"]["torch"] = "0.1"
    write_machine(times_path(), found, runtime._loader.installed().packages)
    assert chosen(runtime, platform)[0] == "slow"


def test_times_that_are_not_measured_again_stay(runtime, platform, timings):
    installed = runtime._loader.installed().packages
    first = machine(runtime, platform, timings)
    write_machine(times_path(), first, installed)
    prefill = {**first, "measurements": [{**first["measurements"][0], "phase": "prefill"}]}
    write_machine(times_path(), prefill, installed)
    other = {**first, "device": {**first["device"], "name": "another"}}
    write_machine(times_path(), other, installed)
    samples = [{"rows": 1, "length": 1, "nanoseconds": {"torch": 1}}]
    again = {**first, "measurements": [{**first["measurements"][0], "samples": samples}]}
    write_machine(times_path(), again, installed)
    phases = [measured["phase"] for measured in measurements_for(platform, installed)]
    assert phases == ["prefill", "decode"]
    assert measurements_for(platform, installed)[1]["samples"] == samples
    assert len(read_machines(times_path())) == 2
    write_machine(times_path(), first, {**installed, "torch": "99"})
    assert [m["phase"] for m in measurements_for(platform, installed)] == ["decode"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        "[]",
        '{"schema": 3, "machines": []}',
        '{"schema": 0, "machines": []}',
        '{"schema": 2}',
        '{"schema": 2, "machines": [{"device": {}, "packages": {}}]}',
        '{"schema": 2, "machines": [{"device": {}, "packages": {}, "measurements": [{"op": "mla"}]}]}',
    ],
)
def test_an_invalid_times_file_is_refused(runtime, platform, text):
    times_path().write_text(text)
    with pytest.raises(TimesError, match=r"times\.json can't be used"):
        runtime.resolve("short_conv", "decode", device=platform, dtype="float32")


MEASUREMENT = {
    "op": "short_conv",
    "phase": "decode",
    "dtype": "float32",
    "head_size": None,
    "heads": None,
    "no_decay": False,
    "samples": [{"rows": 1, "length": 1, "nanoseconds": {"torch": 5}}],
}
SAMPLE = MEASUREMENT["samples"][0]


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"op": "short_con"}, "op", "is 'short_con'; valid: one of .*short_conv"),
        ({"phase": 1}, "phase", "is 1; valid: one of prefill"),
        ({"dtype": "half"}, "dtype", "is 'half'; valid: one of float64"),
        ({"head_size": 1.5}, "head_size", r"is 1\.5"),
        ({"head_size": [1, 2, 3]}, "head_size", r"is \[1, 2, 3\]"),
        ({"heads": 3}, "heads", "is 3; valid: the numbers of q"),
        ({"heads": [2**40, 1]}, "heads", r"is \[1099511627776, 1\]"),
        ({"no_decay": None}, "no_decay", "is None; valid: True or False"),
        ({"samples": {}}, "samples", r"is \{\}; valid: a list"),
        ({"samples": [SAMPLE, 3]}, "samples[1]", "is 3; valid: a mapping with rows"),
        ({"samples": [{**SAMPLE, "rows": -1}]}, "samples[0].rows", "is -1"),
        ({"samples": [{**SAMPLE, "length": True}]}, "samples[0].length", "is True"),
        ({"samples": [{"rows": 1, "length": 1}]}, "samples[0].nanoseconds", "lacks nanoseconds"),
        ({"samples": [{**SAMPLE, "nanoseconds": {"torch": 1.5}}]}, "samples[0].nanoseconds", "is {'torch'"),
        ({"samples": [{**SAMPLE, "nanoseconds": [1]}]}, "samples[0].nanoseconds", r"is \[1\]"),
        ({"samples": [{**SAMPLE, "nanoseconds": {"a": 2**64}}]}, "samples[0].nanoseconds", "is {'a'"),
        ({"samples": [{**SAMPLE, "spread": 0.5}]}, "samples[0].spread", "is 0.5; valid: a mapping"),
        ({"samples": [{**SAMPLE, "spread": {"torch": -1}}]}, "samples[0].spread", "is {'torch'"),
        ({"samples": [{**SAMPLE, "spread": {"torch": math.nan}}]}, "samples[0].spread", "is {'torch'"),
    ],
)
def test_an_invalid_field_is_named(runtime, platform, change, field, said):
    measurements = [MEASUREMENT, {**MEASUREMENT, **change}]
    ask = {"device": platform, "dtype": "float32"}
    with pytest.raises(ArgumentError, match=said) as found:
        runtime.resolve("short_conv", "decode", **ask, measurements=measurements)
    assert found.value.argument == f"measurements[1].{field}"
    here = {"device": device_of(platform), "packages": {}, "measurements": measurements}
    times_path().write_text(json.dumps({"schema": 2, "machines": [here]}))
    with pytest.raises(TimesError, match=rf"times\.json can't be used.*{said}"):
        runtime.resolve("short_conv", "decode", **ask)


@pytest.mark.parametrize("measurements", [3, "torch", MEASUREMENT, [3], [None]])
def test_invalid_measurements_are_refused(runtime, measurements):
    ask = {"device": "cpu", "dtype": "float32", "measurements": measurements}
    with pytest.raises(ArgumentError, match=r"measurements(\[0\])? is .*; valid: a (list|mapping)"):
        runtime.resolve("short_conv", "decode", **ask)


def test_times_of_an_older_version_are_ignored_and_replaced(runtime, platform, timings):
    times_path().write_text('{"schema": 1, "machines": [{"device": {}}]}')
    assert chosen(runtime, platform)[0] == "slow"
    write_machine(times_path(), machine(runtime, platform, timings), runtime._loader.installed().packages)
    assert chosen(runtime, platform)[0] == "torch"


def test_where_the_file_is(monkeypatch, tmp_path):
    monkeypatch.delenv("SWITCHRAIL_TIMES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert times_path() == tmp_path / "switchrail" / "times.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert times_path() == tmp_path / ".cache" / "switchrail" / "times.json"


def test_the_command(tmp_path, monkeypatch):
    from switchrail.cli.app import app
    from typer.testing import CliRunner

    monkeypatch.setenv("SWITCHRAIL_TIMES", str(tmp_path / "times.json"))
    chosen = ["--op", "short_conv", "--phase", "decode", "--device", "cpu"]
    with isolated():
        done = CliRunner().invoke(app, ["tune", *chosen])
    assert done.exit_code == 0, done.output
    assert f"written to {tmp_path / 'times.json'}" in done.output
    lines = [line.split() for line in done.output.splitlines()]
    head = "short_conv decode in float32, 1024 channels, microseconds: torch on the host"
    assert head.split() in lines
    assert ["rows", "longest", "torch"] in lines
    times = lines[lines.index(["rows", "longest", "torch"]) + 1 :][:3]
    assert [line[:2] for line in times] == [["1", "1"], ["4", "1"], ["16", "1"]]
    assert all(float(line[2].replace(",", "")) > 0 for line in times)
    (kept,) = json.loads((tmp_path / "times.json").read_text())["machines"]
    assert [measured["op"] for measured in kept["measurements"]] == ["short_conv"]
    with isolated():
        done = CliRunner().invoke(app, ["tune", *chosen, "--json", "--output", str(tmp_path / "other.json")])
    assert json.loads(done.stdout)["path"] == str(tmp_path / "other.json")
    assert read_machines(tmp_path / "other.json")
    checkpoint = str(Path(__file__).parents[1] / "checkpoints" / "kjv-qwen3-next")
    only = ["--op", "gated_delta", "--phase", "decode", "--device", "cpu"]
    with isolated():
        assert CliRunner().invoke(app, ["tune", checkpoint, *only]).exit_code == 0
    with isolated():
        explained = CliRunner().invoke(app, ["explain", checkpoint, "--device", "cpu", "--phase", "decode"])
    assert explained.output.count("fastest that fits, as measured here") == 2  # short_conv's times were kept
    with isolated():
        done = CliRunner().invoke(app, ["tune", "--phase", "verfy"])
    assert (done.exit_code, "unknown phase 'verfy'" in done.stderr) == (2, True)
    with isolated():
        done = CliRunner().invoke(app, ["tune", checkpoint, "--op", "mla"])
    said = "runs no mla; valid: short_conv, gated_delta, attention"
    assert (done.exit_code, said in " ".join(done.stderr.replace("│", " ").split())) == (2, True), done.stderr


def test_an_interrupted_command_keeps_its_times(tmp_path, monkeypatch):
    from switchrail.cli.app import app
    from switchrail.tune import timing
    from typer.testing import CliRunner

    def time_calls(calls, way, platform):
        if timed:
            raise KeyboardInterrupt
        return Time(7, 0.0)

    def keep(*arguments):
        write_machine(*arguments)
        timed.append(True)

    timed = []
    monkeypatch.setattr(timing, "time_calls", time_calls)
    monkeypatch.setattr("switchrail.cli.tune.write_machine", keep)
    path = tmp_path / "times.json"
    with isolated():
        arguments = ["tune", "--op", "short_conv", "--device", "cpu", "--output", str(path)]
        assert CliRunner().invoke(app, arguments).exit_code != 0
    (kept,) = read_machines(path)
    assert [measured["phase"] for measured in kept["measurements"]] == ["prefill"]


def test_times_stay_where_nothing_could_be_timed_again(runtime, platform, timings, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("the device is gone")

    installed = runtime._loader.installed().packages
    write_machine(times_path(), machine(runtime, platform, timings), installed)
    before = measurements_for(platform, installed)
    monkeypatch.setattr("switchrail.tune.timing.time_calls", fail)
    again = list(tune(runtime, platform, ops=("short_conv",), phases=("decode",), dtypes=("float32",)))
    assert "the device is gone" in again[0].left_out["torch"]
    write_machine(times_path(), machine(runtime, platform, again), installed)
    assert measurements_for(platform, installed) == before


@pytest.fixture
def clock(monkeypatch):
    """Returns a function that makes `time_calls` return the given times, one after another."""

    def install(*told):
        times = iter(told)

        def time_calls(calls, way, platform):
            asked.append(next(times))
            return asked[-1]

        asked = []
        monkeypatch.setattr("switchrail.tune.timing.time_calls", time_calls)
        return asked

    return install


NOISY = Time(4_244_000, 21.0)
STEADY = Time(194_000, 0.05)


def tuned(runtime, platform, batches=3):
    (timing,) = tune(runtime, platform, ops=("short_conv",), phases=("decode",), dtypes=("float32",))
    assert len(timing.samples) == batches
    return timing


def test_a_noisy_time_is_measured_again_after_the_others(runtime, platform, clock):
    other = Time(300_000, 0.2)  # the largest spread of a time that isn't noisy
    asked = clock(NOISY, other, NOISY, STEADY, *[other] * 4)
    timing = tuned(runtime, platform)
    first, second, _ = timing.samples.values()
    assert first == {"slow": 194_000, "torch": 300_000}
    assert second == {"slow": 300_000, "torch": 300_000}
    assert len(asked) == 2 + 2 + 4
    assert timing.noisy == []


def test_noisy_times_are_kept_reported_and_increased_by_their_spread(runtime, platform, clock):
    steady = Time(100_000, 0.0)
    tries = [Time(150_000, 0.5), steady, Time(90_000, 0.25), Time(100_000, 0.3)]
    assert len(tries) == 1 + ATTEMPTS
    clock(*tries, *[Time(50_000, 0.0), steady] * 2)
    timing = tuned(runtime, platform)
    ((name, batch, spread),) = timing.noisy
    assert (name, str(batch), spread) == ("slow", "1 x 1 rows", 0.25)
    kept = timing.to_dict()["samples"]
    assert kept[0]["nanoseconds"] == {"slow": 90_000, "torch": 100_000}
    assert kept[0]["spread"] == {"slow": 0.25, "torch": 0.0}
    write_machine(times_path(), machine(runtime, platform, [timing]), runtime._loader.installed().packages)
    (counted,) = measurements_for(platform, runtime._loader.installed().packages)
    assert counted["samples"][0] == {
        "rows": 1,
        "length": 1,
        "nanoseconds": {"slow": 112_500, "torch": 100_000},
    }
    decision = runtime.resolve("short_conv", "decode", device=platform, dtype="float32")
    assert decision.at([1], None) == "torch"
    assert decision.at([1] * 16, None) == "slow"


def test_the_command_warns_of_noisy_times(tmp_path, clock):
    from switchrail.cli.app import app
    from typer.testing import CliRunner

    clock(*[NOISY] * ATTEMPTS, *[STEADY] * 2)
    chosen = ["--op", "short_conv", "--phase", "decode", "--device", "cpu"]
    with isolated():
        done = CliRunner().invoke(app, ["tune", *chosen, "--json", "--output", str(tmp_path / "times.json")])
    assert done.exit_code == 0, done.output
    (warning,) = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert "short_conv decode in float32" in warning
    assert warning.endswith("measure again on an idle machine: torch with 1 x 1 rows (2100%)")
    (measured,) = json.loads(done.stdout)["measurements"]
    assert [sample["spread"]["torch"] for sample in measured["samples"]] == [21.0, 0.05, 0.05]
