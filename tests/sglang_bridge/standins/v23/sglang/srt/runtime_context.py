"""Stand-in: the options that SGLang has decided on."""

from types import SimpleNamespace

OPTIONS = {}
"""The options by name."""


def get_spec():
    names = "speculative_algorithm", "speculative_num_draft_tokens", "speculative_eagle_topk"
    mode = OPTIONS.get("speculative_attention_mode", "prefill")
    return SimpleNamespace(speculative_attention_mode=mode, **{name: OPTIONS.get(name) for name in names})


def get_exec():
    names = "linear_attn_backend", "linear_attn_decode_backend", "linear_attn_verify_backend"
    decode = SimpleNamespace(backend=OPTIONS.get("cuda_graph_backend_decode", "full"))
    return SimpleNamespace(
        mamba=SimpleNamespace(**{name: OPTIONS.get(name) for name in names}),
        graph=SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=decode)),
    )
