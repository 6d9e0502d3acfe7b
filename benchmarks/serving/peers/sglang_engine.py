"""Runs SGLang's engine in a process of its own: `sglang_engine.py FD`.

Reads requests from standard input, one JSON object per line, and writes the answer to each request to the
file descriptor FD, because SGLang prints to standard output. The first request has the arguments of the
engine, with their names in SGLang 0.5.23; its answer is SGLang's version.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

OLD_NAMES = {
    "0.5.11": {
        "mamba_radix_cache_strategy": "mamba_scheduler_strategy",
        "cuda_graph_max_bs_decode": "cuda_graph_max_bs",
    }
}
"""By version, the older names of arguments by their names in SGLang 0.5.23."""


async def serve(engine, prompts, arrivals, params):
    """The times in seconds of each token of each prompt."""
    start = time.perf_counter()

    async def one(prompt, arrival):
        await asyncio.sleep(max(arrival - (time.perf_counter() - start), 0.0))
        times = []
        chunks = await engine.async_generate(input_ids=prompt, sampling_params=params, stream=True)
        async for chunk in chunks:
            now = time.perf_counter() - start
            times += [now] * (chunk["meta_info"]["completion_tokens"] - len(times))
        return times

    return await asyncio.gather(*map(one, prompts, arrivals))


def run(engine, prompts, params):
    """Seconds until all prompts have all their tokens."""
    start = time.perf_counter()
    outputs = engine.generate(input_ids=prompts, sampling_params=params)
    seconds = time.perf_counter() - start
    assert all(len(one["output_ids"]) == params["max_new_tokens"] for one in outputs)
    return seconds


def tokens(engine, prompts, params):
    """Each prompt's new tokens, and the numbers of its tokens in the prefix cache and of accepted drafts."""
    return [
        {
            "tokens": one["output_ids"],
            "cached": one["meta_info"]["cached_tokens"],
            "accepted": accepted(one["meta_info"]),
        }
        for one in engine.generate(input_ids=prompts, sampling_params=params)
    ]


def accepted(meta):
    """The number of accepted drafts, whose name depends on SGLang's version."""
    names = ("spec_num_correct_drafts", "spec_accepted_drafts")
    return next((meta[name] for name in names if meta.get(name) is not None), 0)


def scores(engine, prompts):
    """For each token of a prompt after the first: its log-probability, and the most probable token there."""
    outputs = engine.generate(
        input_ids=prompts,
        sampling_params={"max_new_tokens": 1, "temperature": 0},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=1,
    )
    return [
        {
            "scores": [score for score, *_ in one["meta_info"]["input_token_logprobs"][1:]],
            "best": [best[1] for best, *_ in one["meta_info"]["input_top_logprobs"][1:]],
        }
        for one in outputs
    ]


def answer(engine, request):
    if request["call"] == "serve":
        return engine.loop.run_until_complete(
            serve(engine, request["prompts"], request["arrivals"], request["params"])
        )
    if request["call"] == "scores":
        return scores(engine, request["prompts"])
    work = {"run": run, "tokens": tokens}[request["call"]]
    return work(engine, request["prompts"], request["params"])


def main():
    with os.fdopen(int(sys.argv[1]), "w") as out:

        def tell(value):
            out.write(json.dumps(value) + "\n")
            out.flush()

        import sglang

        names = OLD_NAMES.get(sglang.__version__, {})
        options = json.loads(sys.stdin.readline())
        engine = sglang.Engine(**{names.get(name, name): value for name, value in options.items()})
        tell(sglang.__version__)
        for line in sys.stdin:
            tell(answer(engine, json.loads(line)))
        engine.shutdown()


if __name__ == "__main__":
    main()
