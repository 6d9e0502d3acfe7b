"""A stand-in for SGLang's model runner, with the attention backend that SGLang would make for it."""

from importlib import import_module
from types import SimpleNamespace

import torch


def make_backend(version, name, layers, cache, *, page, pages, requests, longest, drafts, **runner):
    """Make an attention backend as a version of SGLang does.

    Args:
        version: "v11" or "v23".
        name: The name of the attention backend.
        layers: The model's layers.
        cache: The cache of keys and values.
        page: Page size in tokens.
        pages: The number of pages that requests use, in a mixed order.
        requests: The number of requests; request 0 is padding.
        longest: Maximum tokens of a request.
        drafts: The numbers of drafted tokens and of a draft's branches; None if nothing is drafted.
        runner: Further attributes of the runner; `options` are options of SGLang.

    Returns:
        The backend, and the runner.
    """
    options = {"speculative_algorithm": None, **runner.pop("options", {})}
    if drafts is not None:
        names = ("speculative_algorithm", "speculative_num_draft_tokens", "speculative_eagle_topk")
        options.update(zip(names, ("EAGLE", *drafts), strict=True))
    if version == "v23":
        import_module("sglang.srt.runtime_context").OPTIONS.update(options)
    table = torch.zeros(requests, longest, dtype=torch.int32)
    for request in range(1, requests):
        own = 1 + (torch.arange(longest // page) * 3 + request) % pages
        table[request] = (own[:, None] * page + torch.arange(page)).flatten()
    made = SimpleNamespace(
        model=layers,
        device="cpu",
        dtype=torch.float32,
        kv_cache_dtype=torch.float32,
        page_size=page,
        is_draft_worker=False,
        token_to_kv_pool=cache,
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        server_args=SimpleNamespace(disable_cuda_graph=True, **options),
        **{"model_config": SimpleNamespace(context_len=longest), **runner},
    )
    registry = import_module("sglang.srt.layers.attention.attention_registry")
    return registry.ATTENTION_BACKENDS[name](made), made
