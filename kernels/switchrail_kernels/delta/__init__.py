"""What the chunked kernels of the delta rule share: the solve inside a chunk, the walk over the chunks.

A chunk has 32 tokens. With A strictly lower triangular, T = (I + A)^-1 diag(beta) and P the causal scores,
none of which depends on a state, and S the state before the chunk:

    u = T v - T (from S^T)        out = read S^T + P u        S <- S decay + u^T write

`from`, `read` and `write` are k, q and k times what decays from the chunk's start to the token, or from the
token to the chunk's end: a number a token in `gated_delta`, a number a channel in `kda`.

Where the time axis is split (`switchrail_kernels.segments`), a segment takes the state S before it to
S M + B, where B is what it makes of no state, and M of the identity without values.
"""
