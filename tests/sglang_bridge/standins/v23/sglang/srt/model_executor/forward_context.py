"""Stand-in: the attention backend of the current pass."""

CURRENT = []


def get_attn_backend():
    return CURRENT[-1]
