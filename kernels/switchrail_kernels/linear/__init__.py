"""Linear attention with a decay a head and token, which `lightning` and `mamba2` are.

For a state S [V, K] of a head: S <- exp(g_t) S + w_t v_t k_t^T, out = scale S q_t + skip v_t. In `lightning`
g is a number a head, w is 1 and there is no skip; in `mamba2` w is the time step, g its product with A, and
k, v and q are B, x and C. With G the running sum of g inside a chunk:

    P[i, j] = scale exp(G_i - G_j) w_j q_i . k_j for i >= j, and skip on the diagonal
    out = scale exp(G) q S^T + P v
    S   <- exp(G_last) S + v^T (w exp(G_last - G) k)

The walk does all of a chunk at once, with the state in registers. What of it needs no state, and heads of a
group share, `mamba2` has computed before (`prepare`). Where the time axis is split
(`switchrail_kernels.segments`), a segment takes the state S before it to exp(G) S + B.
"""
