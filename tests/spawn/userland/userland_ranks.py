"""One rank of a job: goes through scenarios, and writes down what `check_ranks` said in each."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import switchrail
import torch.distributed as dist


def run(sites, what, group, timeout):
    """Makes a runtime with the plugins of a scenario, changes it, and has it compared."""
    runtime = switchrail.Runtime()
    runtime.discover(sites)
    sys.path[:0] = sites
    runtime.load()
    del sys.path[: len(sites)]
    layout = switchrail.Layout.from_kinds("tiny", ["full_attention"] * 3)
    preferences = {"attention.decode": "reference"} if what == "plan" else {}
    plan = runtime.plan(layout, device="cpu", dtype="float32", preferences=preferences)
    if what == "configuration":
        runtime.configure("kda", "one", scale=2.0)
    if what == "hook":
        runtime.hooks.add("textwrap.dedent", print)
    if what == "backend":
        runtime.register("more", "a:B", op="kda")
    if what == "platform":
        runtime._platforms._platform = SimpleNamespace(kind="cuda", capability=(8, 0))
    try:
        return {"fingerprint": switchrail.check_ranks(runtime, plan, group, timeout=timeout)}
    finally:
        runtime.hooks.clear()


def main():
    folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    results = {}
    for name, scenario in json.loads((folder / "scenarios.json").read_text()).items():
        what = scenario["ranks"].get(str(rank))
        if what == "gone":
            break
        members = scenario.get("members")
        group = None if members is None else dist.new_group(members)
        if members is not None and rank not in members:
            continue
        try:
            if what == "lazy":
                os.environ["SWITCHRAIL_PLUGINS"] = "acme-nowhere"
            arguments = [str(folder / f"rank{rank}" / site) for site in scenario["sites"]], what, group
            timeout = scenario.get("timeout", 30)
            results[name] = (
                {"fingerprint": switchrail.check_ranks(timeout=timeout)}
                if scenario.get("default")
                else run(*arguments, timeout)
            )
        except switchrail.SwitchrailError as error:
            results[name] = {
                "error": str(error),
                "type": type(error).__name__,
                "ranks": error.fields["ranks"],
            }
        os.environ.pop("SWITCHRAIL_PLUGINS", None)
    (folder / f"{rank}.json").write_text(json.dumps(results))
    os._exit(0)  # others may have gone, for whom torch would wait


if __name__ == "__main__":
    main()
