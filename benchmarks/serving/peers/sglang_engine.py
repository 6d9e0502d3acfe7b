"""SGLang's engine in its own process: `sglang_engine.py FD`.

Reads requests from standard input, one JSON object per line, and writes an answer to each to the file
descriptor. The first request holds the arguments of the engine, and its answer the version. SGLang's output
goes elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time


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


def answer(engine, request):
    if request["call"] == "serve":
        return engine.loop.run_until_complete(
            serve(engine, request["prompts"], request["arrivals"], request["params"])
        )
    return run(engine, request["prompts"], request["params"])


def main():
    with os.fdopen(int(sys.argv[1]), "w") as out:

        def tell(value):
            out.write(json.dumps(value) + "\n")
            out.flush()

        import sglang

        engine = sglang.Engine(**json.loads(sys.stdin.readline()))
        tell(sglang.__version__)
        for line in sys.stdin:
            tell(answer(engine, json.loads(line)))
        engine.shutdown()


if __name__ == "__main__":
    main()
