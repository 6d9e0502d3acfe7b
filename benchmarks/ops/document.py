"""The JSON document with the results of runs, from which tables and plots are made."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.ops.cases import cases

PACKAGES = (
    "switchrail",
    "switchrail-kernels",
    "torch",
    "triton",
    "flash-linear-attention",
    "flash-qla",
    "tilelang",
    "flashinfer-python",
    "nvidia-cutlass-dsl",
    "mamba-ssm",
)


def about(device: torch.device, bandwidth: float, rate: float) -> dict[str, Any]:
    """The conditions of a run: commit, date, versions, the device, its bandwidth and its matmul rate."""
    versions = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    versions["torch"] = torch.__version__
    return {
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "versions": versions,
        "copy_bytes_per_s": bandwidth,
        "matmul_flops_per_s": rate,
    }


def _commit() -> str:
    """The commit of this file's tree; empty outside of a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=7", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def read(path: Path) -> dict[str, Any]:
    """Reads a document. If the file does not exist, the document has no runs."""
    return json.loads(path.read_text()) if path.exists() else {"runs": []}


def merged(document: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """A document with one more run, whose results replace older ones of the same cases."""
    new = {case_of(result) for result in run["results"]}
    runs = []
    for old in document["runs"]:
        kept = [result for result in old["results"] if case_of(result) not in new]
        if kept:
            runs.append({**old, "results": kept})
    return {"runs": [*runs, dict(run)]}


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a document atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.replace(path)


def rows_of(document: Mapping[str, Any], op: str, phase: str) -> list[dict[str, Any]]:
    """The results of an op and phase in the order of the op's cases, each with its `run`, numbered from 1."""
    order = {case.name: number for number, case in enumerate(cases(op))}
    found = [
        {**result, "run": number}
        for number, run in enumerate(document["runs"], 1)
        for result in run["results"]
        if (result["op"], result["phase"]) == (op, phase)
    ]
    return sorted(found, key=lambda result: order.get(result["shape"], len(order)))


def case_of(result: Mapping[str, Any]) -> tuple[str, str, str]:
    """The key of a result's case."""
    return result["op"], result["phase"], result["shape"]
