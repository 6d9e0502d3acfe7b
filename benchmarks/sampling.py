"""Times the choice of tokens from logits of a large vocabulary, after checking it.

    python -m benchmarks.sampling                    # vocabulary 151,936; B = 1, 32, 256
    python -m benchmarks.sampling --dtype float32 --json FILE

*switchrail* is the operation `choose_tokens` of the kernels. *sort* samples by sorting in torch. *flashinfer*
uses FlashInfer's sampling functions, if installed. For *sort* and *flashinfer*, the greedy choice is torch's
argmax.

Logits are *flat* (most of the vocabulary can be drawn) or *peaked* (a few tokens have most of the
probability). Prints milliseconds from the logits to the tokens on the device, the median of calls with
different logits; in brackets the difference from the time of Switchrail's greedy choice. Before the timing,
Switchrail's tokens are checked against the filters.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from switchrail import SamplingParams
from switchrail_kernels.sampling.choose import choose_tokens

from benchmarks.arguments import make_parser

VOCABULARY = 151_936
BATCHES = (1, 32, 256)
FILTERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.7},
    "top_p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "top_p 0.1": {"temperature": 0.7, "top_p": 0.1},
    "top_k 50": {"temperature": 0.7, "top_k": 50},
    "top_k 50, top_p 0.9": {"temperature": 0.7, "top_k": 50, "top_p": 0.9},
    "min_p 0.05": {"temperature": 0.7, "min_p": 0.05},
}
SPREADS = {"flat": 1.0, "peaked": 6.0}
SETS, REPEATS = 4, 12

Choose = Callable[[torch.Tensor, SamplingParams], torch.Tensor]


def ours(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    source = random.Random(0)
    return choose_tokens(logits, [params] * len(logits), [source] * len(logits))


def sort(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Sample by inverting the cumulative sum of the filtered probabilities in descending order."""
    if params.temperature == 0:
        return logits.argmax(-1)
    ordered, tokens = (logits.float() / params.temperature).sort(dim=-1, descending=True)
    if params.top_k is not None:
        ordered[:, params.top_k :] = -torch.inf
    p = ordered.softmax(-1)
    mass = p.cumsum(-1)
    kept = (mass - p < params.top_p) & (p >= params.min_p * p[:, :1]) & (p > 0)
    last = kept.sum(-1, keepdim=True).clamp(min=1) - 1
    u = torch.rand(len(p), 1, device=p.device)
    chosen = torch.searchsorted(mass, u * mass.gather(-1, last), right=True).minimum(last)
    return tokens.gather(-1, chosen).squeeze(-1)


def flashinfer(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    from flashinfer import sampling

    if params.temperature == 0:
        return logits.argmax(-1)
    scaled = logits.float() / params.temperature
    if params.min_p > 0:
        return sampling.min_p_sampling_from_probs(scaled.softmax(-1), params.min_p)
    if params.top_k is None:
        return sampling.top_p_sampling_from_probs(scaled.softmax(-1), params.top_p)
    return sampling.top_k_top_p_sampling_from_logits(scaled, params.top_k, params.top_p)


def check(logits: torch.Tensor, params: SamplingParams, tokens: torch.Tensor) -> None:
    """Raise SystemExit if the filters exclude one of the tokens. Of equal logits, all or none are kept."""
    row = torch.arange(len(logits), device=logits.device)
    x = logits.double()
    own = x[row, tokens.long()].unsqueeze(1)
    above = x > own
    if params.temperature == 0:
        kept = ~above.any(-1)
    else:
        w = ((x - x.amax(-1, keepdim=True)) / params.temperature).exp()
        ordered = x.sort(dim=-1, descending=True).values
        least = ordered[:, min(params.top_k or x.shape[-1], x.shape[-1]) - 1].unsqueeze(1)
        whole = w.where(x >= least, 0).sum(-1)  # with all tokens equal to the last one of top_k
        kept = above.sum(-1) < (params.top_k or x.shape[-1])
        kept &= w.where(above, 0).sum(-1) <= params.top_p * whole * (1 + 1e-5)
        kept &= w[row, tokens.long()] >= params.min_p * (1 - 1e-5)
    if not kept.all():
        raise SystemExit(f"a token was drawn that {params} excludes")


def milliseconds(choose: Choose, sets: list[torch.Tensor], params: SamplingParams) -> float:
    for logits in sets:
        choose(logits, params)
    times = []
    for number in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        choose(sets[number % len(sets)], params)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = make_parser("sampling", __doc__)
    parser.add_argument("--batch", type=int, action="append", help="only these numbers of rows")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    contenders: dict[str, Choose] = {"switchrail": ours, "sort": sort}
    if find_spec("flashinfer") is not None:
        contenders["flashinfer"] = flashinfer
    rows = []
    for batch in options.batch or BATCHES:
        for kind, spread in SPREADS.items():
            sets = [
                (torch.randn(batch, VOCABULARY, device="cuda") * spread).to(getattr(torch, options.dtype))
                for _ in range(SETS)
            ]
            greedy = 0.0
            for name, filters in FILTERS.items():
                params = SamplingParams(**filters)
                for logits in sets:
                    check(logits, params, ours(logits, params))
                found = {one: milliseconds(choose, sets, params) for one, choose in contenders.items()}
                greedy = greedy or found["switchrail"]
                rows.append({"batch": batch, "kind": kind, "filters": name, "ms": found})
                told = "  ".join(f"{one} {ms:7.3f} ({ms - greedy:+.3f})" for one, ms in found.items())
                print(f"B={batch:<4} {kind:6} {name:20} {told}", flush=True)
    if options.json:
        document = {"device": torch.cuda.get_device_name(), "dtype": options.dtype, "rows": rows}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
