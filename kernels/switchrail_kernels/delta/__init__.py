"""The chunked kernels of the delta rule: the solve inside a chunk, and the scan over the chunks.

A chunk has 32 tokens. Let A be the strictly lower triangular matrix that each op's `_prepare` computes,
T = (I + A)^-1 diag(beta), and P the causal scores. A, T and P do not depend on a state. Let S be the state
before the chunk:

    u = T v - T (from S^T)        out = read S^T + P u        S <- S decay + u^T write

`from` is k and `read` is q, each times the decay from the chunk's start to the token. `write` is k times the
decay from the token to the chunk's end. `decay` is that of the whole chunk. Decays are single numbers in
`gated_delta`, and have one number per channel in `kda`.

If the time axis is split (`switchrail_kernels.segments`), a segment maps the state S before it to S M + B. B
is the segment's result for S = 0. M is its result if S is the identity and all values are 0.
"""
