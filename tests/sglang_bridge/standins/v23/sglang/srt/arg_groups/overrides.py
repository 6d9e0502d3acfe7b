"""Stand-in: SGLang's rules about its options."""


def supports_mamba_cache_extra_buffer(view, hf_config):
    return view.linear_attn_backend == "triton"
