import ast
import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
import switchrail
import switchrail.testing
import switchrail_kernels
from switchrail.errors import BackendUnfitError
from switchrail.ops.catalog import DEFINITIONS
from switchrail.overrides import call_problem
from switchrail.platforms import OPERATIONS
from switchrail_kernels.claims import COMMON

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]

BASES = {op: DEFINITIONS[op].interface for op, name in switchrail_kernels.BACKENDS if name == "triton"}


class Recorder:
    def __init__(self):
        self.calls = []

    def register(self, name, target, **arguments):
        self.calls.append((name, target, arguments))

    def operation(self, name, target, **arguments):
        pass


for op in BASES:  # before tests change TRITON_INTERPRET, which kernels read when they are defined
    importlib.import_module(f"switchrail_kernels.{op}.triton")


@pytest.fixture(params=["compiled", "interpreted"])
def recorded(request, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1" if request.param == "interpreted" else "0")
    recorder = Recorder()
    switchrail_kernels.register(recorder)
    return request.param, recorder.calls


def test_each_path_names_a_backend_of_its_op(recorded):
    _, calls = recorded
    assert len(calls) == len(switchrail_kernels.BACKENDS)
    for name, path, arguments in calls:
        assert path.startswith(f"switchrail_kernels.{arguments['op']}.{name}:")
        module, _, attribute = path.partition(":")
        if name == "triton":
            assert issubclass(getattr(importlib.import_module(module), attribute), BASES[arguments["op"]])
        else:  # the backend's library may be missing
            path = ROOT / "kernels" / (module.replace(".", "/") + ".py")
            classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
            (found,) = [node for node in classes if node.name == attribute]
            assert BASES[arguments["op"]].__name__ in [base.id for base in found.bases]


def test_the_interpreter_serves_the_cpu_but_is_never_chosen_unasked(recorded):
    mode, calls = recorded
    for name, _, arguments in calls:
        if name != "triton":
            continue
        assert ("cpu" in arguments["devices"]) == (mode == "interpreted")
        assert ("bfloat16" in arguments["dtypes"]) == (mode == "compiled")
        assert (arguments["priority"] < -100) == (mode == "interpreted")


def test_importing_and_registering_imports_neither_torch_nor_triton():
    program = (
        "import sys, switchrail_kernels\n"
        "class Recorder:\n"
        "    def register(self, *args, **kwargs): pass\n"
        "    operation = register\n"
        "switchrail_kernels.register(Recorder())\n"
        "print(sorted({'torch', 'triton'} & set(sys.modules)))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert printed == "[]\n"


def test_the_extra_of_each_library_brings_what_its_backends_need():
    with (ROOT / "kernels/pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    needed = {}
    for (_, name), (_, own) in switchrail_kernels.BACKENDS.items():
        packages = {**COMMON[name], **own}["packages"]
        needed.setdefault(name, set()).update(packages)
    triton = needed.pop("triton")
    assert {requirement.partition(";")[0] for requirement in project["dependencies"]} >= triton
    extras = {name: set(requirements) for name, requirements in project["optional-dependencies"].items()}
    assert extras == {name: packages - triton for name, packages in needed.items()}


@pytest.mark.parametrize(
    ("op", "name", "phase", "package"),
    [
        ("attention", "flashinfer", "prefill", "flashinfer-python"),
        ("mla", "flashinfer", "decode", "flashinfer-python"),
        ("gated_delta", "flashinfer", "prefill", "flashinfer-python"),
        ("kda", "flashinfer", "decode", "nvidia-cutlass-dsl"),
        ("gated_delta", "cutedsl", "decode", "nvidia-cutlass-dsl"),
        ("gated_delta", "flashqla", "prefill", "flash-qla"),
    ],
)
def test_a_library_that_is_missing_is_the_reason(op, name, phase, package):
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        pytest.skip(f"{package} is installed")
    asked = {"device": "cuda", "capability": (9, 0), "dtype": "bfloat16"}
    with switchrail.testing.isolated() as runtime:
        runtime.load()
        with pytest.raises(BackendUnfitError, match=f"needs {package}.* which is not installed"):
            runtime.resolve(op, phase, **asked, preferences={op: name})
        rejected = {entry.name: entry.reasons for entry in runtime.resolve(op, phase, **asked).rejected}
        assert all(reason.startswith("needs ") for reason in rejected[name])


def test_a_triton_that_is_too_old_is_the_reason(tmp_path, monkeypatch):
    metadata = tmp_path / "triton-3.5.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 3.5.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    asked = {"device": "cuda", "capability": (9, 0), "dtype": "bfloat16"}
    with switchrail.testing.isolated() as runtime:
        runtime.load()
        for op in BASES:
            decision = runtime.resolve(op, "prefill", **asked)
            assert decision.chosen == "torch"
            (rejected,) = [entry for entry in decision.rejected if entry.name == "triton"]
            assert rejected.reasons == ["needs triton>=3.6, and version 3.5.1 is installed"]


def test_each_function_fits_its_operation():
    assert switchrail_kernels.OPERATIONS
    for name, path in switchrail_kernels.OPERATIONS.items():
        module, _, attribute = path.partition(":")
        function = getattr(importlib.import_module(module), attribute)
        assert call_problem(function, OPERATIONS[name].forward) is None


def test_gpus_have_the_functions_from_capability_8_on():
    runtime = switchrail.Runtime()
    runtime.load(["switchrail-kernels"])
    found = [runtime._functions.find("experts", "cuda", capability) for capability in ((7, 5), (9, 0))]
    assert [function is None for function in found] == [True, False]
    assert runtime._functions.find("experts", "cpu", None) is None
