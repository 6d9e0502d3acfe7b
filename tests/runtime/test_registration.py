from __future__ import annotations

import inspect
import pydoc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import switchrail
import torch
from switchrail import Runtime
from switchrail.errors import (
    ArgumentError,
    BackendImportError,
    NameTakenError,
    RegistrationError,
    SwitchrailError,
    TransactionClosedError,
    UnknownBackendError,
    UnknownDeviceError,
    UnknownDtypeError,
    UnknownOpError,
    UnknownPhaseError,
)
from switchrail.ops import Backend, GatedDeltaBackend

LAYOUT = switchrail.Layout.from_kinds("tiny", ["gated_delta", "full_attention"])


def bind(runtime: Runtime, **preferences: str) -> switchrail.BoundPlan:
    return runtime.bind(runtime.plan(LAYOUT, device="cpu", dtype="float32", preferences=preferences))


class Acme(GatedDeltaBackend):
    def run(self, *args: Any, **kwargs: Any) -> Any:
        return "acme", args, kwargs


class Other(Acme):
    pass


def test_decorator_returns_the_class_itself(runtime: Runtime) -> None:
    before = dict(vars(Acme))
    assert runtime.register("acme", op="gated_delta")(Acme) is Acme
    assert switchrail.register("other", op="gated_delta")(Other) is Other
    assert dict(vars(Acme)) == before
    assert [backend.name for backend in runtime.backends("gated_delta")] == [
        "acme",
        "other",
        "reference",
        "torch",
    ]


def test_a_path_imports_nothing_until_it_is_chosen(
    runtime: Runtime, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lazy_acme.py").write_text(
        "from switchrail.ops import GatedDeltaBackend\n"
        "class Acme(GatedDeltaBackend):\n"
        "    def run(self, *args, **kwargs): return 'lazy'\n"
    )
    runtime.register("lazy", "lazy_acme:Acme", op="gated_delta", priority=-1)
    assert runtime.backend("gated_delta", "lazy").path == "lazy_acme:Acme"
    assert "lazy" in {
        r.name for r in runtime.resolve("gated_delta", "decode", device="cpu", dtype="float32").rejected
    }
    bind(runtime)
    assert "lazy_acme" not in sys.modules
    assert bind(runtime, gated_delta="lazy").lookup("gated_delta", "decode", 0)() == "lazy"
    assert sys.modules.pop("lazy_acme")


class NoBackend:
    op = "gated_delta"


class Empty(GatedDeltaBackend):
    pass


class OldStyle(GatedDeltaBackend):
    """A backend with the interface that preceded `run`."""

    def prefill(self, q: Any, k: Any, v: Any, **arguments: Any) -> None:
        return None

    def decode(self, q: Any, k: Any, v: Any, **arguments: Any) -> None:
        return None


class OfAnotherOp(Acme):
    op = "kda"


HERE = sys.modules[__name__]


@pytest.mark.parametrize(
    ("path", "problem", "cause"),
    [
        ("no_such_module_of_acme:Acme", "No module named 'no_such_module_of_acme'", ModuleNotFoundError),
        ("math:sqroot", "no attribute 'sqroot'; nearest: sqrt", AttributeError),
        ("acme_tests:Acme.Inner", "no attribute 'Inner'", AttributeError),
        ("acme_tests:text", "it is 'text'", None),
        ("acme_tests:NoBackend", "isn't derived from", None),
        ("acme_tests:OfAnotherOp", "it is a backend for 'kda'", None),
        ("acme_tests:Empty", "it has no method 'run'", None),
        ("acme_tests:OldStyle", "it has 'prefill' and 'decode', which Switchrail no longer calls", None),
        ("acme_broken:Acme", "RuntimeError('half-way')", RuntimeError),
        ("acme_exits:Acme", "SystemExit(3)", SystemExit),
    ],
)
def test_a_path_that_leads_nowhere(
    runtime: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    problem: str,
    cause: type[BaseException] | None,
) -> None:
    names = {name: getattr(HERE, name) for name in ("Acme", "Empty", "NoBackend", "OfAnotherOp", "OldStyle")}
    monkeypatch.setitem(sys.modules, "acme_tests", SimpleNamespace(text="text", **names))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "acme_broken.py").write_text("raise RuntimeError('half-way')\n")
    (tmp_path / "acme_exits.py").write_text("raise SystemExit(3)\n")
    runtime.register("broken", path, op="gated_delta", priority=-1)
    bind(runtime)
    with pytest.raises(BackendImportError) as caught:
        bind(runtime, gated_delta="broken")
    error = caught.value
    assert isinstance(error, ImportError)
    assert (error.backend, error.op, error.path) == ("broken", "gated_delta", path)
    assert problem in str(error)
    assert repr("broken") in str(error)
    assert repr(path) in str(error)
    assert type(error.__cause__) is (cause or type(None))
    assert bind(runtime).lookup("gated_delta", "decode", 0)


def test_a_class_that_can_not_be_constructed(runtime: Runtime) -> None:
    class NoConfig(Acme):
        def __init__(self) -> None: ...

    class Failing(Acme):
        def __init__(self, config: None) -> None:
            raise failure

    failure = TypeError("no driver")
    runtime.register("failing", Failing, op="gated_delta", priority=-1)
    with pytest.raises(
        BackendImportError,
        match=r"'no-config' .*NoConfig.__init__ has parameters \(\).*expected \(config=None\)",
    ):
        runtime.register("no-config", NoConfig, op="gated_delta", priority=-1)
    with pytest.raises(TypeError) as caught:
        bind(runtime, gated_delta="failing")
    assert caught.value is failure


def test_a_backend_that_verifies_a_state_must_commit_it(runtime: Runtime) -> None:
    with pytest.raises(BackendImportError, match="has no method 'commit'"):
        runtime.register("acme", Acme, op="gated_delta", phases=("verify",))

    class Commits(Acme):
        def commit(self, *args: Any, **kwargs: Any) -> None:
            return None

    runtime.register("acme", Commits, op="gated_delta", phases=("verify",))


@pytest.mark.parametrize("cls", [NoBackend, Empty, OldStyle, OfAnotherOp, Backend])
def test_a_class_is_checked_when_it_is_registered(runtime: Runtime, cls: type) -> None:
    before = runtime.backends()
    with pytest.raises(BackendImportError):
        runtime.register("wrong", cls, op="gated_delta")
    assert runtime.backends() == before


def test_the_error_for_an_old_style_class_lists_the_changes(runtime: Runtime) -> None:
    with pytest.raises(BackendImportError) as caught:
        runtime.register("old", OldStyle, op="gated_delta")
    for word in (
        "'prefill' and 'decode'",
        "run(call, batch, plan)",
        "call.layer",
        "commit(call, batch, plan",
    ):
        assert word in str(caught.value)


def test_a_taken_name_needs_override(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta")
    with pytest.raises(NameTakenError, match="already registered by the user") as caught:
        runtime.register("acme", Other, op="gated_delta")
    assert caught.value.found == "acme"
    with pytest.raises(NameTakenError, match="already registered by switchrail"):
        runtime.register("torch", Acme, op="gated_delta")
    runtime.register("acme", Other, op="gated_delta", override=True)
    assert type(bind(runtime, gated_delta="acme").backend("gated_delta", "decode", 0)) is Other


def test_clearing_restores_or_unregisters(runtime: Runtime) -> None:
    builtin = runtime.backend("gated_delta", "torch")
    runtime.register("torch", Acme, op="gated_delta", override=True)
    runtime.register("torch", Other, op="gated_delta", override=True)
    runtime.register("acme", Acme, op="gated_delta")
    assert type(bind(runtime, gated_delta="torch").backend("gated_delta", "decode", 0)) is Other
    for _ in range(2):
        runtime.clear("gated_delta", "torch")
        assert runtime.backend("gated_delta", "torch") == builtin
        runtime.clear("gated_delta", "acme")
        with pytest.raises(UnknownBackendError):
            runtime.backend("gated_delta", "acme")
        runtime.clear("gated_delta", "never_was")


def test_two_names_with_one_path_stay_distinct(runtime: Runtime) -> None:
    path = "switchrail.ops.gated_delta.torch:TorchGatedDelta"
    runtime.register("one", path, op="gated_delta", priority=7)
    runtime.register("two", path, op="gated_delta", priority=-7)
    one, two = runtime.backend("gated_delta", "one"), runtime.backend("gated_delta", "two")
    assert one.path == two.path == path
    assert (one.priority, two.priority) == (7, -7)
    assert one.id != two.id
    assert one != two
    routes = bind(runtime, **{"gated_delta.prefill": "one", "gated_delta.decode": "two"})
    backends = [routes.backend("gated_delta", phase, 0) for phase in ("prefill", "decode")]
    assert backends[0] is not backends[1]
    calls = [routes.lookup("gated_delta", phase, 0) for phase in ("prefill", "decode")]
    assert [call.__self__ for call in calls] == backends


def test_a_bound_plan_keeps_a_cleared_backend(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta")
    routes = bind(runtime, gated_delta="acme")
    table, call = routes.plan.table, routes.lookup("gated_delta", "decode", 0)
    assert not routes.is_stale()
    runtime.clear("gated_delta", "acme")
    assert routes.is_stale()
    assert routes.plan.table == table
    assert routes.lookup("gated_delta", "decode", 0) is call
    assert call(1)[0] == "acme"


def test_a_transaction_is_whole_or_not_at_all(runtime: Runtime) -> None:
    version = runtime.backends()

    def fail() -> None:
        with runtime.transaction() as registry:
            registry.register("one", Acme, op="gated_delta")
            assert runtime.backends() == version
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert runtime.backends() == version
    with runtime.transaction() as registry:
        registry.register("one", Acme, op="gated_delta")
        registry.register("two", Acme, op="gated_delta")
    assert len(runtime.backends()) == len(version) + 2
    with pytest.raises(TransactionClosedError):
        registry.register("three", Acme, op="gated_delta")


def test_the_nearest_name_is_offered(runtime: Runtime) -> None:
    with pytest.raises(UnknownBackendError, match="nearest: torch") as caught:
        runtime.backend("gated_delta", "torhc")
    assert caught.value.valid == ("reference", "torch")
    with pytest.raises(UnknownBackendError) as caught:
        bind(runtime, gated_delta="torhc")
    assert caught.value.nearest == ("torch",)


@pytest.mark.parametrize(
    ("arguments", "error", "part"),
    [
        ({"op": "gdn"}, UnknownOpError, "gdn"),
        ({"phases": ["prefil"]}, UnknownPhaseError, "prefill"),
        ({"phases": []}, RegistrationError, "phases"),
        ({"op": "gdn", "target": Acme}, UnknownOpError, "gdn"),
        ({"phases": "decode"}, ArgumentError, "phases is 'decode'; valid: a list"),
        ({"phases": None}, ArgumentError, "phases is None"),
        ({"devices": "cpu"}, ArgumentError, "devices"),
        ({"devices": [switchrail.DeviceSupport("cuda", 9)]}, ArgumentError, "min_capability is 9"),
        ({"dtypes": torch.float32}, ArgumentError, "dtypes is torch.float32"),
        ({"head_sizes": 64}, ArgumentError, "head_sizes is 64"),
        ({"page_sizes": ["16"]}, ArgumentError, "page_sizes[0] is '16'; valid: an integer"),
        ({"features": [3]}, ArgumentError, "features[0] is 3; valid: a string"),
        ({"priority": "high"}, ArgumentError, "priority is 'high'; valid: an integer"),
        ({"name": Acme, "target": None}, ArgumentError, "name is <class"),
        ({"devices": ["cude"]}, UnknownDeviceError, "cuda"),
        ({"devices": []}, RegistrationError, "devices"),
        ({"devices": [switchrail.DeviceSupport("cuda", (9, 0), (8, 0))]}, RegistrationError, "devices"),
        ({"dtypes": ["float23"]}, UnknownDtypeError, "float"),
        ({"state_dtypes": ["f32"]}, UnknownDtypeError, "f32"),
        ({"page_sizes": [0]}, RegistrationError, "page_sizes"),
        ({"packages": ["??"]}, RegistrationError, "??"),
        ({"name": "auto"}, RegistrationError, "auto"),
        ({"name": "a b"}, RegistrationError, "letters"),
        ({"target": "no colon"}, RegistrationError, "module:"),
        ({"target": 42}, ArgumentError, "target is 42; valid: a class"),
    ],
)
def test_invalid_registrations_are_refused(
    runtime: Runtime, arguments: dict[str, Any], error: type[SwitchrailError], part: str
) -> None:
    before = runtime.backends()
    given = {"name": "acme", "target": "acme:Acme", "op": "gated_delta", **arguments}
    with pytest.raises(error) as caught:
        runtime.register(**given)
    assert part in str(caught.value)
    assert runtime.backends() == before


def test_a_string_in_place_of_a_list_is_refused(runtime: Runtime) -> None:
    wanted: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
    for call in (
        lambda: runtime.resolve("gated_delta", "decode", features="fast", **wanted),
        lambda: runtime.plan(LAYOUT, features={"gated_delta": "fast"}, **wanted),
        lambda: runtime.plan(LAYOUT, phases="fast", **wanted),
        lambda: runtime.load("fast"),
        lambda: runtime.discover("fast"),
    ):
        with pytest.raises(ArgumentError, match="is 'fast'; valid: a list") as caught:
            call()
        assert isinstance(caught.value, TypeError)
        assert caught.value.found == "fast"


def test_arguments_of_other_types_are_named(runtime: Runtime) -> None:
    with pytest.raises(ArgumentError, match=r"device is device\(type='cpu'\); valid: a platform"):
        runtime.resolve("gated_delta", "decode", device=torch.device("cpu"), dtype="float32")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="page_size is 'big'") as caught:
        runtime.plan(LAYOUT, device="cpu", dtype="float32", page_size="big")  # type: ignore[arg-type]
    assert (caught.value.argument, caught.value.found) == ("page_size", "big")


def test_a_misspelt_argument_is_refused(runtime: Runtime) -> None:
    with pytest.raises(TypeError, match="priorty"):
        runtime.register("acme", Acme, op="gated_delta", priorty=1)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("given", "nearest"),
    [({"device": ("cpu",)}, ("devices",)), ({"opp": "kda"}, ("op",)), ({"overide": True}, ("override",))],
)
def test_a_misspelt_argument_has_the_nearest(runtime, given, nearest):
    for register in (runtime.register, switchrail.register):
        with pytest.raises(ArgumentError) as caught:
            register("ill", "ill:Ill", **{"op": "kda", **given})
        assert (caught.value.found, caught.value.nearest) == (*given, nearest)
        assert f"register() has no argument {next(iter(given))!r}; nearest: {nearest[0]}" in str(caught.value)
    with pytest.raises(ArgumentError, match=r"plan\(\) has no argument 'backends'; nearest: preferences"):
        runtime.plan(None, backends={})
    with pytest.raises(ArgumentError, match="resolve\\(\\) has no argument 'devise'; nearest: device"):
        runtime.resolve("kda", "decode", devise="cpu", dtype="float32")
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'op'"):
        runtime.register("ill", "ill:Ill")


REGISTER = """
    (self, name: 'str', target: 'type[Any] | str | None' = None, *, op: 'str',
    phases: 'Iterable[str]' = ('prefill', 'decode'), devices: 'Iterable[str | DeviceSupport]' = ('cpu',),
    dtypes: 'Iterable[str | torch.dtype] | None' = None,
    state_dtypes: 'Iterable[str | torch.dtype] | None' = None,
    head_sizes: 'Iterable[int | tuple[int, int]] | None' = None,
    page_sizes: 'Iterable[int] | None' = None, state_layouts: 'Iterable[str] | None' = None,
    features: 'Iterable[str]' = (), packages: 'Iterable[str]' = (), priority: 'int' = 0, config: 'Any' = None,
    override: 'bool' = False) -> 'Callable[[C], C] | None'
"""
HOOK = """
    (self, target: 'object', fn: 'Callable[..., Any] | None' = None, kind: 'Kind' = 'before', *,
    priority: 'int' = 0, before: 'Sequence[str]' = (), after: 'Sequence[str]' = ())
    -> 'Hook | Callable[[F], F]'
"""


@pytest.mark.parametrize(("name", "expected"), [("register", REGISTER), ("hook", HOOK)])
def test_signatures_list_every_option(name: str, expected: str) -> None:
    """`help` shows every option, although the code lists the options in one place only."""
    signature = inspect.signature(getattr(Runtime, name))
    if sys.version_info < (3, 14):  # 3.14 writes types without quotes
        assert str(signature) == " ".join(expected.split())
    bound = signature.replace(parameters=[*signature.parameters.values()][1:])
    assert inspect.signature(getattr(switchrail, name)) == bound
    assert str(bound) in pydoc.plain(pydoc.render_doc(getattr(switchrail, name)))


def test_a_misspelt_option_of_a_hook_has_the_nearest(runtime: Runtime) -> None:
    for hook in (runtime.hook, switchrail.hook):
        for fn in (print, None):
            with pytest.raises(ArgumentError) as caught:
                hook("json.dumps", fn, **{"priorty": 1})  # type: ignore[call-overload]
            assert (caught.value.found, caught.value.nearest) == ("priorty", ("priority",))
            assert "hook() has no argument 'priorty'; nearest: priority; valid: " in str(caught.value)
        with pytest.raises(ArgumentError, match=r"hook\(\) has no argument 'source'"):
            hook("json.dumps", print, **{"source": "somebody"})  # type: ignore[call-overload]
    for method in (runtime.hooks.add, runtime.hooks.prepare):
        expected = rf"{method.__name__}\(\) has no argument 'befor'; nearest: before"
        with pytest.raises(ArgumentError, match=expected):
            method("json.dumps", print, **{"befor": ("a",)})
