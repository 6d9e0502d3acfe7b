"""The chunked kernels of the delta rule: the solve inside a chunk, and the scan over the chunks.

A chunk has 32 tokens. Let D[i, j] be the decay from token j to token i. The scan takes these matrices, which
do not depend on a state:

    A[i, j] = beta_i D[i, j] k_i . k_j for i > j        P[i, j] = scale D[i, j] q_i . k_j for i >= j
    T = (I + A)^-1 diag(beta)

Let S be the state before the chunk. Then

    u = T v - T (from S^T)        out = read S^T + P u        S <- S decay + u^T write

`from` is k, and `read` is scale q, each times the decay from the chunk's start to the token. `write` is k
times the decay from the token to the chunk's end. `decay` is that of the whole chunk. A decay is one number
in `gated_delta`. In `kda` it has one number per channel, which multiplies the channel's term of an inner
product.

If the time axis is split (`switchrail_kernels.segments`), a segment maps the state S before it to S M + B. B
is the segment's result for S = 0. M is its result if S is the identity and all values are 0.
"""
