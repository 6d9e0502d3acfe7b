"""Linear attention with a decay per head and token, for `lightning` and `mamba2`.

For a state S [V, K] of a head: S <- exp(g_t) S + w_t v_t k_t^T, out = scale S q_t + skip v_t. In `lightning`,
g is one number per head, w is 1 and there is no skip. In `mamba2`, w is the time step, g is w times A, and k,
v and q are B, x and C. With G the running sum of g inside a chunk:

    P[i, j] = scale exp(G_i - G_j) w_j q_i . k_j for i >= j, and skip on the diagonal
    out = scale exp(G) q S^T + P v
    S   <- exp(G_last) S + v^T (w exp(G_last - G) k)

The scan computes each chunk at once, with the state in registers. In `mamba2`, `prepare` first computes the
inputs that don't depend on the state: the products q_i . k_j of each group, and the gates of each head. If
the time axis is split (`switchrail_kernels.segments`), a segment maps the state S before it to exp(G) S + B.
G is the sum of the segment's g, and B is the segment's result for S = 0.
"""
