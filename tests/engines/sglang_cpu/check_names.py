"""Names of linear-attention backends that SGLang accepts, with the bridge and without it."""

import json
import os
import subprocess
import sys

import pytest

UNKNOWN = ["tritn", "TRITON", "", 42]
PROGRAM = """
import json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.arg_groups import choices
choices.add_linear_attn_kernel_backend_choices(["one", "two"])
from sglang.srt.layers.attention.linear.gdn_backend import GDNKernelDispatcher
from sglang.srt.layers.attention.linear.kda_backend import KDAKernelDispatcher
from sglang.srt.layers.attention.linear.utils import LinearAttnKernelBackend
from sglang.srt.platforms.interface import SRTPlatform

def told(work):
    try:
        return work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def member(value):
    return told(lambda: LinearAttnKernelBackend(value).value)

def dispatched(kind, count, value):
    made = lambda: kind(*[LinearAttnKernelBackend(value)] * count)
    return told(lambda: type(made().decode_kernel).__name__)

unknown, ours = json.loads(sys.argv[1])
print(json.dumps({
    "unknown": [member(value) for value in unknown],
    "two": [member("one"), member("two"), LinearAttnKernelBackend("one") is LinearAttnKernelBackend("two")],
    "custom": told(LinearAttnKernelBackend("one").is_custom),
    "GDN": dispatched(GDNKernelDispatcher, 2, ours),
    "KDA": dispatched(KDAKernelDispatcher, 3, ours),
    "platform": [name for name in dir(SRTPlatform) if "linear" in name],
    "choices": choices.LINEAR_ATTN_KERNEL_BACKEND_CHOICES,
}))
"""


@pytest.fixture(scope="module", params=["with", "without"])
def found(request):
    plugins = "interpreted-cpu" + (",switchrail" if request.param == "with" else "")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([UNKNOWN, "switchrail:acme"])],
        env={**os.environ, "SGLANG_PLUGINS": plugins},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return request.param == "with", json.loads(done.stdout.splitlines()[-1])


def test_names_that_nobody_registered(found):
    bridged, answers = found
    if not bridged:
        assert answers["unknown"] == ["custom"] * len(UNKNOWN)
    for name, answer in zip(UNKNOWN, answers["unknown"], strict=True):
        assert not bridged or answer.startswith(
            f"UnknownBackendError: there is no linear attention backend {name!r}"
        )


def test_names_of_two_plugins(found):
    bridged, answers = found
    assert answers["two"] == (["one", "two", False] if bridged else ["custom", "custom", True])
    assert answers["custom"] is True


@pytest.mark.parametrize("kind", ["GDN", "KDA"])
def test_a_plugins_name_reaches_a_kernel(found, kind):
    bridged, answers = found
    if bridged:
        assert answers[kind] == f"Triton{kind}Kernel"
    else:
        refusal = f"ValueError: Unsupported {kind} decode backend: LinearAttnKernelBackend.CUSTOM"
        assert answers[kind].startswith(refusal)
    assert ("switchrail:acme" in answers["choices"]) == bridged


def test_sglangs_platforms_have_no_linear_kernels(found):
    """With the bridge, linear kernels come from Switchrail's platforms; see `check_engine.py`."""
    assert found[1]["platform"] == []
