"""Reports of code that bypasses hooks: caches, compilers that read the source, and holders of the object."""

import functools
import importlib
import sys
import types

import pytest
from switchrail.errors import HookError

CACHED = "calls that the lru_cache of hook_targets.f answers bypass the hook"


def negated(result, *args, **kwargs):
    return -result


def test_a_cache_in_the_module(hooks, module, caplog):
    module.cached = functools.lru_cache(module.f)
    assert module.cached(1) == 3
    hook = hooks.add("hook_targets.f", negated, "after")
    assert (module.f(1), module.cached(1), module.cached(2)) == (-3, 3, -4)
    assert caplog.messages == [f"{hook!r}: {CACHED}"]
    assert hooks.explain(module.f).bypassed() == (CACHED,)


def test_a_cache_somewhere(hooks, module, caplog):
    held = [functools.cache(module.f), functools.lru_cache(maxsize=0)(module.f)]
    hooks.add("hook_targets.f", negated, "after")
    assert not caplog.records
    assert hooks.explain(module.f).bypassed() == (CACHED,)
    held.clear()
    assert hooks.explain(module.f).bypassed() == ()


def test_a_cache_in_the_class(hooks, caplog):
    module = sys.modules[__name__]

    class Cached:
        def m(self):
            return 1

        fast = functools.cache(m)

    module.Cached = Cached
    Cached.m.__qualname__ = "Cached.m"
    hooks.add(Cached.m, negated, "after")
    text = caplog.text.replace(f"{__name__}.", "test_bypass.")
    assert "the lru_cache of test_bypass.Cached.m answers" in text
    del module.Cached


def test_a_cache_that_keeps_nothing(hooks, module, caplog):
    module.cached = functools.lru_cache(maxsize=0)(module.f)
    hooks.add("hook_targets.f", negated, "after")
    assert module.cached(1) == module.cached(1) == -3
    assert not caplog.records


def test_reported_when_a_waiting_hook_finds_it(hooks, tmp_path, monkeypatch, caplog):
    (tmp_path / "late_cached.py").write_text(
        "import functools\ndef f(): return 1\ncached = functools.cache(f)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    hooks.add("late_cached.f", negated, "after")
    assert not caplog.records
    importlib.import_module("late_cached")
    assert "the lru_cache of late_cached.f answers" in caplog.text
    del sys.modules["late_cached"]


def scripted_with_a_hook(x: int) -> int:
    return x + 1


def scripted_without(x: int) -> int:
    return x + 1


# torch.jit keeps compiled code for the life of the process, so each case has its own function.
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize("scripted", [scripted_with_a_hook, scripted_without])
def test_torch_script(hooks, caplog, scripted):
    torch = pytest.importorskip("torch")
    if scripted is scripted_with_a_hook:
        hooks.add(scripted, negated, "after")
    compiled = torch.jit.script(scripted)
    if scripted is scripted_without:
        hooks.add(scripted, negated, "after")
    assert (scripted(1), compiled(1)) == (-2, 2)
    note = f"torch.jit has compiled {__name__}.{scripted.__name__} from its source, bypassing the hook"
    assert hooks.explain(scripted).bypassed() == (note,)
    assert (note in caplog.text) == (scripted is scripted_without)


TRITON = """
import triton
import triton.language as tl

@triton.jit
def inner(x):
    return x + 1

@triton.jit
def kernel(pointer):
    tl.store(pointer, inner(tl.load(pointer)))
"""


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    (tmp_path / "hook_kernels.py").write_text(TRITON)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("hook_kernels")
    del sys.modules["hook_kernels"]


def test_triton(hooks, kernels, caplog):
    hooks.add(kernels.inner.fn, negated, "after")
    note = "triton has compiled hook_kernels.inner from its source, bypassing the hook"
    assert note in caplog.text
    assert hooks.explain("hook_kernels.inner.fn").bypassed() == (note,)
    caplog.clear()
    hooks.add("hook_kernels.kernel", negated, "after")
    note = "triton compiles callers together with the target's source, bypassing the hook"
    assert note in caplog.text
    assert note in hooks.explain("hook_kernels.kernel").bypassed()


def test_numba(hooks, module, caplog):
    """numba's dispatchers are recognised by their package and an attribute."""
    cls = type("CPUDispatcher", (), {"__module__": "numba.core.registry"})
    module.compiled = cls()
    module.compiled.py_func = module.f
    hooks.add(module.f, negated, "after")
    note = "numba has compiled hook_targets.f from its source, bypassing the hook"
    assert note in caplog.text
    assert hooks.explain(module.f).bypassed() == (note,)


def test_holders_that_keep_an_object_unhooked(hooks, module):
    class Adder:
        def __call__(self, x):
            return x + 1

    module.adder = Adder()
    held = (module.adder,)
    hooks.add("hook_targets.adder", negated, "after")
    assert held[0](1) == 2
    notes = hooks.explain("hook_targets.adder").bypassed()
    assert [note.startswith("a builtins.tuple refers to the unhooked object") for note in notes] == [True]


def test_no_bypass(hooks, module):
    hooks.add(module.f, negated, "after")
    assert hooks.explain(module.f).bypassed() == ()
    with pytest.raises(HookError):
        hooks.explain(types)
