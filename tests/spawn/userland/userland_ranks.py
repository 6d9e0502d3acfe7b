"""A job: each rank runs scenarios, and records the result of `check_ranks` in each."""

import json
import os
import socket
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import switchrail
import torch.distributed as dist


def run(sites, what, group, timeout, meet):
    """Make a runtime with a scenario's plugins, change it, and compare it with those of the other ranks.

    Calls `meet` before the comparison.
    """
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
    meet()
    try:
        return {"fingerprint": switchrail.check_ranks(runtime, plan, group, timeout=timeout)}
    finally:
        runtime.hooks.clear()


def work(folder, rank, size, listener):
    """Run one rank. Rank 0 hosts the store."""
    sys.path.insert(0, str(folder / f"rank{rank}" / "one"))
    port, options = listener.getsockname()[1], {}
    if rank == 0:
        options = {"is_master": True, "master_listen_fd": listener.detach(), "wait_for_workers": False}
    else:
        listener.close()
    store = dist.TCPStore("127.0.0.1", port, size, timeout=timedelta(seconds=60), **options)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    results = {}
    for name, scenario in json.loads((folder / "scenarios.json").read_text()).items():
        what = scenario["ranks"].get(str(rank))
        if what == "gone":
            break
        coming = size - [*scenario["ranks"].values()].count("gone")

        def meet(scenario=scenario, coming=coming, what=what):
            """In a scenario with a timeout, wait for the ranks that come: it limits the comparison only."""
            if "timeout" in scenario:
                store.add("coming", 1)
                while store.add("coming", 0) < coming:
                    time.sleep(0.01)
            if what == "late":
                time.sleep(0.5)

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
                else run(*arguments, timeout, meet)
            )
        except switchrail.SwitchrailError as error:
            results[name] = {
                "error": str(error),
                "type": type(error).__name__,
                "ranks": error.fields["ranks"],
            }
        os.environ.pop("SWITCHRAIL_PLUGINS", None)
    (folder / f"{rank}.json").write_text(json.dumps(results))


def main():
    """Fork the ranks, so that torch is imported once."""
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0))
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            try:
                work(folder, rank, size, listener)
            except BaseException:
                traceback.print_exc()
            os._exit(0)  # other ranks may have ended, and torch would wait for them
        children.append(child)
    listener.close()
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
