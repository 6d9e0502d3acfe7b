"""Stand-in: the lists of names that SGLang's options accept."""

ATTENTION_BACKEND_CHOICES = ["triton", "torch_native"]
LINEAR_ATTN_KERNEL_BACKEND_CHOICES = ["triton", "flashinfer"]
