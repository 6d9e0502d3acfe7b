"""Stand-in: the lists of names that SGLang's options accept."""

ATTENTION_BACKEND_CHOICES = ["triton", "torch_native"]
LINEAR_ATTN_KERNEL_BACKEND_CHOICES = ["triton", "flashinfer"]
add_linear_attn_kernel_backend_choices = LINEAR_ATTN_KERNEL_BACKEND_CHOICES.extend
CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS = ["fa3"]
