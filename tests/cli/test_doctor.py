"""`doctor` finds each defect and suggests a remedy; a correct installation has no findings."""

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from switchrail import waiting
from switchrail.doctor import device, diagnose
from switchrail.lock import write_lock
from switchrail.plugins import attempt
from switchrail.testing import isolated

NOTHING = "def register(registry): pass"


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """Hide this machine's SWITCHRAIL_ variables and NVIDIA driver; remove the test's modules afterwards."""
    for name in [name for name in os.environ if name.startswith("SWITCHRAIL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(device, "DRIVER", tmp_path / "no-driver")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield
    for name in [name for name in sys.modules if name.startswith("ill_")]:
        del sys.modules[name]


@pytest.fixture
def clock(monkeypatch):
    """A clock for load times, which plugins can import as `ill_clock` and advance."""

    class Clock(ModuleType):
        seconds = 0.0
        go = threading.Event()

        def monotonic(self):
            return self.seconds

        def pass_time(self):
            self.seconds += 0.5
            time.sleep(0.1)

    clock = Clock("ill_clock")
    monkeypatch.setitem(sys.modules, "ill_clock", clock)
    for module in (waiting, attempt):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def before(clean):
    """The findings before the test adds its defect."""
    return diagnose()


@pytest.fixture
def install(tmp_path):
    def install(
        name, code=NOTHING, *, version="1.0", plugin=None, group="plugins", target="register", site="site"
    ):
        module = name.replace("-", "_")
        folder = tmp_path / site
        info = folder / f"{module}-{version}.dist-info"
        info.mkdir(parents=True)
        (folder / f"{module}.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(
            f"{module}.py,,\n{info.name}/METADATA,,\n{info.name}/entry_points.txt,,\n"
        )
        (info / "entry_points.txt").write_text(
            f"[switchrail.{group}]\n{plugin or name} = {module}:{target}\n"
        )
        return info

    return install


@pytest.fixture
def find(before):
    """Returns the one new finding with this check and subject; each new one must have problem and advice."""

    def find(check, subject):
        found = [finding for finding in diagnose() if finding not in before]
        matching = [finding for finding in found if (finding.check, finding.subject) == (check, subject)]
        assert len(matching) == 1, found
        assert all(finding.problem and finding.advice for finding in found)
        return matching[0]

    return find


def test_nothing_is_wrong(switchrail, before):
    assert before == []
    done = switchrail("doctor")
    assert (done.exit_code, done.output) == (0, "nothing is wrong\n")
    assert json.loads(switchrail("doctor", "--json").output) == []


@pytest.mark.parametrize(
    ("variable", "value", "problem", "advice"),
    [
        ("SWITCHRAIL_PLUGINS", "ill-gnd", 'nearest: "ill-gdn"', "name installed plugins"),
        ("SWITCHRAIL_PLATFORM", "cudda", 'nearest: "cuda"', "built-in kind"),
        ("SWITCHRAIL_LOCK", "/no/such/lock", "/no/such/lock", "switchrail lock"),
        ("SWITCHRAIL_LOAD_TIMEOUT", "soon", "soon", "number of seconds"),
        ("SWITCHRAIL_LOAD_TIMEOUT", "-1", "-1", "number of seconds"),
        ("SWITCHRAIL_PLUGIN", "ill-gdn", "no such variable", "rename it to SWITCHRAIL_PLUGINS"),
        ("SWITCHRAIL_QUUX_AND_MORE", "1", "no such variable", "unset it"),
    ],
)
def test_a_wrong_variable_or_value(install, find, monkeypatch, variable, value, problem, advice):
    install("ill-gdn")
    monkeypatch.setenv(variable, value)
    finding = find("environment", variable)
    assert problem in finding.problem
    assert advice in finding.advice
    assert os.environ[variable] == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[config.attention.nobodys]\nx = 1", "no attention backend 'nobodys'"),
        ("[config.attention.torch]\nx = 1", "takes no configuration"),
    ],
)
def test_a_configuration_that_fits_no_backend(tmp_path, before, monkeypatch, text, problem):
    """`doctor` reports the configuration once, and doesn't report a backend that can't be constructed."""
    (tmp_path / "policy.toml").write_text(text)
    monkeypatch.setenv("SWITCHRAIL_POLICY", str(tmp_path / "policy.toml"))
    (finding,) = [finding for finding in diagnose() if finding not in before]
    assert (finding.check, finding.subject) == ("environment", "SWITCHRAIL_POLICY")
    assert problem in finding.problem


def test_a_wrong_variable_does_not_hide_the_rest(install, monkeypatch):
    install("ill-gdn", "raise OSError('no driver')")
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "other")
    found = {(finding.check, finding.subject) for finding in diagnose()}
    assert found >= {("environment", "SWITCHRAIL_PLUGINS"), ("plugins", "ill-gdn:ill-gdn")}


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise OSError('no driver')", "failed: OSError: no driver"),
        ("def register(registry): raise SystemExit(3)", "failed: SystemExit: 3"),
        ("def setup(registry): pass", "failed: EntryPointError: "),
        (
            "def register(registry): registry.register('torch', 'a:B', op='attention')",
            "failed: NameTakenError",
        ),
    ],
)
def test_a_broken_plugin(install, find, code, problem):
    install("ill-gdn", code)
    finding = find("plugins", "ill-gdn:ill-gdn")
    assert finding.problem.startswith(problem)
    assert ("ill_gdn.py:1)" in finding.problem) == (problem != "failed: EntryPointError: ")
    assert "switchrail plugins --json" in finding.advice


def test_a_plugin_that_hangs(install, find, clock, monkeypatch):
    install(
        "ill-gdn",
        "import ill_clock\ndef register(registry):\n    ill_clock.seconds += 1\n    ill_clock.go.wait(60)\n",
    )
    monkeypatch.setenv("SWITCHRAIL_LOAD_TIMEOUT", "0.2")
    finding = find("plugins", "ill-gdn:ill-gdn")
    clock.go.set()
    assert finding.problem.startswith("hung: its function took longer than 0.2 s")
    assert "SWITCHRAIL_LOAD_TIMEOUT" in finding.advice


def test_a_plugin_that_is_left_out_is_a_note_and_no_problem(install, switchrail, monkeypatch):
    install("ill-gdn")
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "")
    done = switchrail("doctor")
    assert done.exit_code == 0
    assert "note: plugins, ill-gdn:ill-gdn: not loaded: the allow list is empty\n" in done.output
    assert done.output.endswith("nothing is wrong\n")


def test_a_hook_without_a_target(install, find, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "ill_target.py").write_text("def function(value): return value\n")
    install(
        "ill-hook",
        "def fn(*args, **kwargs): pass\n"
        "def register(registry):\n"
        "    registry.hook('ill_target.function', fn)\n"
        "    registry.hook('ill_target.funktion', fn)\n",
    )
    finding = find("hooks", "ill_target.funktion")
    assert "is not in force: " in finding.problem
    assert "function" in finding.problem
    assert "ill-hook may need another version" in finding.advice


@pytest.mark.parametrize("what", ["missing", "broken"])
def test_a_hook_whose_module_is_not_there(install, find, tmp_path, what):
    if what == "broken":
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "ill_target.py").write_text("raise ImportError('no libacme.so')\n")
    install("ill-hook", "def register(registry): registry.hook('ill_target.function', print)")
    finding = find("hooks", "ill_target.function")
    assert {"missing": "'ill_target'", "broken": "no libacme.so"}[what] in finding.problem


def test_a_backend_that_is_not_there(install, find):
    install("ill-gdn", "def register(registry): registry.register('ill', 'ill_gdn:Missing', op='kda')")
    finding = find("backends", "kda backend ill")
    assert "'Missing'" in finding.problem
    assert 'it is from plugin "ill-gdn" of ill-gdn 1.0' in finding.advice


def test_a_mistake_in_a_class_path_is_no_reason_to_leave_the_plugin_out(install, find):
    code = "class Torch: pass\ndef register(registry): registry.register('ill', 'ill_gdn:Trch', op='kda')\n"
    install("ill-gdn", code)
    finding = find("backends", "kda backend ill")
    assert finding.problem.endswith("has no attribute 'Trch'; nearest: Torch")
    assert "SWITCHRAIL_PLUGINS" not in finding.problem + finding.advice
    assert (
        "'Trch' in its registered path does not exist: correct the path in the registration" in finding.advice
    )


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("ill_gdm:Torch", "'ill_gdm' in its registered path does not exist: correct the path"),
        ("ill_late:Torch", "install the package that the message names"),
    ],
)
def test_a_module_that_is_not_there_and_one_that_lacks_another(install, find, tmp_path, path, advice):
    install("ill-gdn", f"def register(registry): registry.register('ill', {path!r}, op='kda')")
    (tmp_path / "site" / "ill_late.py").write_text("import ill_absent")
    assert advice in find("backends", "kda backend ill").advice


def test_little_time_for_plugins_is_not_little_time_for_torch(install, clock, monkeypatch):
    """The time limit for plugins does not limit imports of torch, of backends' modules or of hooked
    modules."""
    monkeypatch.setenv("SWITCHRAIL_LOAD_TIMEOUT", "0.01")
    slow = "import ill_clock\nill_clock.pass_time()\n"
    monkeypatch.setattr("switchrail.doctor.check_device", lambda: clock.pass_time() or [])
    install(
        "ill-gdn",
        "def register(registry):\n"
        "    registry.register('ill', 'ill_slow:Slow', op='kda')\n"
        "    registry.hook('ill_target.function', print)\n",
    )
    (Path(sys.path[0]) / "ill_target.py").write_text(f"{slow}def function(*values): pass\n")
    (Path(sys.path[0]) / "ill_slow.py").write_text(
        f"{slow}from switchrail.ops.kda.torch import TorchKda as Slow\n"
    )
    assert [finding for finding in diagnose() if "takes longer" in finding.problem] == []


def test_two_plugins_of_one_name(install, find):
    install("ill-one", plugin="ill")
    install("ill-two", plugin="ill")
    finding = find("names", "ill")
    assert "ill-one, ill-two" in finding.problem
    assert "ill-one:ill and ill-two:ill" in finding.advice


@pytest.mark.parametrize("name", ["ill-gdn", "ill--gdn"])
def test_a_hidden_second_copy_is_found(install, find, tmp_path, monkeypatch, name):
    install(name)
    install(name, version="2.0", site="other")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "other"), str(tmp_path / "other" / ".")])
    finding = find("copies", "ill-gdn")
    assert finding.problem == f"2.0 in {tmp_path / 'other'} is hidden by 1.0 in {tmp_path / 'site'}"
    assert "pip uninstall ill-gdn" in finding.advice


def test_the_source_of_an_editable_installation_is_no_copy(install, before, tmp_path, monkeypatch):
    info = install("ill-gdn")
    source = install("ill-gdn", site="tree/src")
    source.rename(source.with_name("ill_gdn.egg-info"))
    (source.with_name("ill_gdn.egg-info") / "METADATA").rename(
        source.with_name("ill_gdn.egg-info") / "PKG-INFO"
    )
    origin = {"url": (tmp_path / "tree").as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    for place in (0, len(sys.path)):
        path = [*sys.path[:place], str(tmp_path / "tree" / "src"), *sys.path[place:]]
        monkeypatch.setattr(sys, "path", path)
        assert diagnose() == before
    (info / "direct_url.json").write_text(json.dumps({**origin, "url": (tmp_path / "more").as_uri()}))
    assert {finding.check for finding in diagnose()} == {"copies"}


def test_two_versions_in_one_folder(install, find, tmp_path):
    install("ill-gdn")
    info = install("ill-gdn-x", version="2.0")
    shutil.move(info, info.with_name("ill_gdn-2.0.dist-info"))
    metadata = tmp_path / "site" / "ill_gdn-2.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("ill-gdn-x", "ill-gdn"))
    finding = find("metadata", str(metadata.parent))
    assert "reinstall the distribution" in finding.advice


@pytest.mark.parametrize("left", ["0.5", "3.0"])
def test_metadata_left_over_beside_a_sound_distribution(install, find, left):
    sound = install("ill-gdn")
    info = sound.with_name(f"ill_gdn-{left}.dist-info")
    info.mkdir()
    (info / "RECORD").write_text("")
    finding = find("metadata", str(info))
    assert finding.problem == f"has no metadata, and is ignored in favour of {sound}, which has the same name"
    assert finding.advice.startswith("remove this folder by hand")


def test_metadata_without_a_name(install, find):
    info = install("ill-gdn")
    (info / "METADATA").write_text("Version: 1.0\n")
    (info / "entry_points.txt").unlink()
    assert find("metadata", str(info)).problem == "its metadata has no Name"


@pytest.mark.parametrize(("group", "valid"), [("plugin", "plugins"), ("platform", "platforms")])
def test_a_group_that_nobody_reads(install, find, group, valid):
    install("ill-gdn", group=group)
    finding = find("groups", "ill-gdn:ill-gdn")
    assert f"in switchrail.{group}, which" in finding.problem
    assert f"rename the group to switchrail.{valid}, and install ill-gdn again" in finding.advice


def test_metadata_that_cannot_be_read(install, find):
    info = install("ill-gdn")
    (info / "entry_points.txt").write_text("[switchrail.plugins]\nthis is no entry point\n")
    finding = find("metadata", str(info / "entry_points.txt"))
    assert "reinstall the distribution" in finding.advice


def test_kernels_of_another_version(install, find):
    info = install("switchrail-kernels", version="9.9")
    (info / "entry_points.txt").unlink()
    finding = find("versions", "switchrail-kernels")
    assert finding.problem == "the installed version is 9.9, but the running Switchrail is 0.1.0"
    assert finding.advice == "pip install switchrail-kernels==0.1.0"


def test_the_lock_differs(install, find, tmp_path, monkeypatch):
    install("ill-gdn")
    lock = tmp_path / "lock.json"
    write_lock(lock)
    (tmp_path / "site" / "ill_gdn.py").write_text(f"{NOTHING}  # but otherwise\n")
    monkeypatch.setenv("SWITCHRAIL_LOCK", str(lock))
    finding = find("lock", "ill-gdn")
    assert "ill_gdn.py" in finding.problem
    assert f"switchrail lock --output {lock}" in finding.advice


def test_plugins_left_out_by_lock_or_allow_list_have_one_finding(install, tmp_path, monkeypatch):
    install("ill-gdn")
    install("ill-lockstep")
    install("ill-other")
    lock = tmp_path / "lock.json"
    write_lock(lock)
    (tmp_path / "site" / "ill_gdn.py").write_text(f"{NOTHING}  # but otherwise\n")
    monkeypatch.setenv("SWITCHRAIL_LOCK", str(lock))
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "ill-gdn, ill-lockstep")
    found = {(finding.check, finding.subject) for finding in diagnose()}
    assert {("lock", "ill-gdn"), ("plugins", "ill-other:ill-other")} <= found
    assert not found & {("plugins", "ill-gdn:ill-gdn"), ("lock", "ill-other")}


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def register(): raise OSError('no device file')", "no device file"),
        ("def register(): return 'ill_platform:Missing'", "'ill_platform:Missing'"),
        ("def register(): return 3", "it returned 3"),
    ],
)
def test_a_broken_platform(install, find, code, problem):
    install("ill-platform", code, group="platforms")
    finding = find("platform", "the platform")
    assert problem in finding.problem
    assert "SWITCHRAIL_PLATFORM" in finding.advice


def test_two_platforms_are_active(install, find):
    code = "def register(): return 'switchrail.platforms:CpuPlatform'"
    install("ill-one", code, group="platforms")
    install("ill-two", code, group="platforms")
    assert "2 platforms are active: ill-one, ill-two" in find("platform", "the platform").problem


def test_a_platform_whose_property_raises(install, find):
    install(
        "ill-platform",
        "from switchrail.platforms import CpuHardware, CpuPlatform\n"
        "class Hardware(CpuHardware):\n"
        "    kind = 'oot:ill'\n"
        "    def supported_dtypes(self): raise RuntimeError('ask the driver')\n"
        "class Mine(CpuPlatform):\n"
        "    hardware_class = Hardware\n"
        "def register(): return 'ill_platform:Mine'\n",
        group="platforms",
    )
    finding = find("platform", "platform oot:ill")
    assert finding.problem == "supported_dtypes raised RuntimeError: ask the driver"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Returns the findings of `check_device` for a pretended NVIDIA GPU, driver and build of torch."""

    def gpu(*, cuda="13.0", driver=(13, 0), available=True, built=("sm_90",), capability=(9, 0)):
        (tmp_path / "driver").write_text("NVRM version: 1\n")
        monkeypatch.setattr(device, "DRIVER", tmp_path / "driver")
        monkeypatch.setattr(device, "driver_cuda", lambda: driver)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(
            torch,
            "cuda",
            SimpleNamespace(
                is_available=lambda: available,
                get_arch_list=lambda: list(built),
                device_count=lambda: 1,
                get_device_capability=lambda index: capability,
            ),
        )
        return list(device.check_device())

    return gpu


@pytest.mark.parametrize(
    ("defect", "problem", "advice"),
    [
        ({"cuda": None}, "was built without CUDA", "a torch that was built for CUDA"),
        ({"driver": None}, "libcuda.so.1 is missing", "make the library visible to the process"),
        ({"driver": (12, 4)}, "supports CUDA up to 12.4", "a newer driver, or a torch built for CUDA 12"),
        ({"available": False}, "CUDA_VISIBLE_DEVICES is ''", "unset CUDA_VISIBLE_DEVICES"),
        (
            {"built": ("sm_80", "sm_89")},
            "capability 9.0, but torch was built for sm_80, sm_89",
            "built for capability 9.0",
        ),
    ],
)
def test_defects_of_torch_and_the_driver(gpu, monkeypatch, defect, problem, advice):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    [finding] = gpu(**defect)
    assert finding.check == "device"
    assert problem in finding.problem
    assert advice in finding.advice


@pytest.mark.parametrize(
    "sound",
    [{}, {"driver": (13, 2)}, {"built": ("sm_80", "compute_80")}, {"cuda": "12.8"}, {"built": ("sm_90a",)}],
)
def test_torch_and_a_driver_that_fit_have_no_finding(gpu, sound):
    assert gpu(**sound) == []


def test_torch_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    [finding] = device.check_device()
    assert (finding.subject, finding.advice) == ("torch", "pip install 'switchrail[engine]'")


def test_the_cuda_version_of_this_machines_driver():
    found = device.driver_cuda()
    assert found is None or found >= (11, 0)


def test_output_and_exit_codes_of_doctor(install, switchrail, tmp_path):
    install("ill-gdn", "raise OSError('no driver')")
    place = tmp_path / "site" / "ill_gdn.py"
    done = switchrail("doctor")
    assert done.exit_code == 1
    problem, advice = done.stdout.splitlines()
    assert problem == f"problem: plugins, ill-gdn:ill-gdn: failed: OSError: no driver ({place}:1)"
    assert advice.startswith("    ask its vendor")
    done = switchrail("doctor", "--json")
    assert done.exit_code == 1
    [finding] = json.loads(done.stdout)
    assert finding["is_problem"] is True
    assert list(finding) == ["check", "subject", "problem", "advice", "is_problem"]


def test_it_leaves_the_runtime_alone(install):
    install("ill-hook", "def register(registry): registry.hook('textwrap.dedent', lambda text: None)")
    with isolated() as runtime:
        diagnose()
        assert runtime.plugins == ()
        assert runtime.hooks.list("textwrap.dedent") == ()
