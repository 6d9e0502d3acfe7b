"""A small CPU run of the benchmark of SGLang with Switchrail's kernels. A stand-in replaces SGLang."""

import json
import sys
import xml.etree.ElementTree as ElementTree

from benchmarks import sglang_times

STAND_IN = '''
"""The parts of SGLang that the benchmark needs."""

__version__ = "0"

class Engine:
    def __init__(self, linear_attn_backend="triton", attention_backend="fa3", **options):
        print(f"server_args=ServerArgs(attention_backend='{attention_backend}')")
        print("GDN kernel dispatcher: decode=TritonGDNKernel, extend=FlashInferGDNKernel, verify=X")
        if linear_attn_backend == "switchrail":
            for phase in ("prefill", "decode"):
                print(f"gated_delta {phase} of layers 0, 1: backend triton of switchrail-kernels 0.1.0")
        if attention_backend == "switchrail":
            print("attention prefill of layers 3, 7: backend triton of switchrail-kernels 0.1.0", flush=True)

    def generate(self, input_ids, sampling_params):
        return [{"output_ids": [7] * sampling_params["max_new_tokens"]} for _ in input_ids]

    def shutdown(self):
        pass
'''


def test_the_benchmark_runs(tmp_path, capsys):
    (tmp_path / "sglang.py").write_text(STAND_IN)
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -u "$@"\n')
    script.chmod(0o755)
    found, plots = tmp_path / "found.json", tmp_path / "plots"
    files = ["--checkpoint", str(tmp_path), "--json", str(found), "--plot", str(plots)]
    sglang_times.main([str(script), "--repeats", "2", *files])
    rows = json.loads(found.read_text())["rows"]
    assert [(row["cache"], row["name"]) for row in rows] == [
        (cache, way) for cache in ("off", "on") for way in sglang_times.WAYS
    ]
    assert all(len(row["times"]) == 2 for row in rows)
    own, linear, everything = (row["kernels"] for row in rows[:3])
    assert own == {
        "gated_delta prefill": "FlashInferGDNKernel",
        "gated_delta decode": "TritonGDNKernel",
        "attention": "fa3",
    }
    assert linear["gated_delta decode"] == "Switchrail's triton"
    assert linear["attention"] == "fa3"
    assert everything["attention prefill"] == "Switchrail's triton"
    assert "prefix cache on, prefill of 2, ours in all layers" in capsys.readouterr().out
    (text,) = plots.iterdir()
    ElementTree.parse(text)
    assert "FlashInferGDNKernel" in text.read_text()
