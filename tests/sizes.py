"""Sizes of small models that several tests make."""

GATED_DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
"""Sizes of heads and of the convolution, with the names of Qwen3-Next's config."""
