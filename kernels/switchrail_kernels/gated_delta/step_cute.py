"""The decode step in the CuTe DSL: one launch for any number of sequences, with any slots and strides.

A warp holds some rows of one head's state in registers. Each element of the state is read once and written
once, 16 bytes per lane at a time. A lane issues all reads of its part of the state before it uses the first
value. With S the old state, and k and q normalised, u = beta (v - exp(g) S k),
out = scale (exp(g) S q + u (k . q)), and S becomes exp(g) S + u k^T.
"""

# The DSL evaluates annotations itself, and has no static types for its integers and pointers.
# ruff: noqa: ANN001, ANN201, ANN202, ANN204
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, type-arg"

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute

WARPS = 4
"""Warps per block."""

BYTES = 16
"""Bytes that a lane moves with one instruction."""

HELD = 8
"""Maximum number of 16-byte vectors of the state that a lane holds in registers."""


@cute.jit
def _vector(address, dtype: cutlass.Constexpr, size: cutlass.Constexpr, align: cutlass.Constexpr):
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=align)
    return cute.make_tensor(pointer, cute.make_layout(size))


@cute.jit
def _number(address, dtype: cutlass.Constexpr):
    return _vector(address, dtype, 1, dtype.width // 8)[0]


class Step:
    """The kernel for one combination of dtypes and sizes.

    Compile-time constants are attributes. If they were local variables, the DSL would turn them into device
    variables in any function that branches on a device value.

    Args:
        io: The dtype of q, k, v and out.
        gate: The dtype of g.
        beta: The dtype of beta.
        bias: The dtype of dt_bias; None for no bias.
        state: The dtype of the states.
        key_size: K.
        value_size: V.
        l2norm: Whether q and k are normalised.
        kind: The kind of g: 0 for the log of the decay; 1 or 2 for raw g, from which the kernel computes the
            log of the decay with a softplus (1) or a sigmoid (2).
        raw_beta: Whether beta is raw, so that the kernel applies a sigmoid.
    """

    def __init__(
        self,
        *,
        io: Any,
        gate: Any,
        beta: Any,
        bias: Any,
        state: Any,
        key_size: int,
        value_size: int,
        l2norm: bool,
        kind: int,
        raw_beta: bool,
    ) -> None:
        self.io, self.gate, self.beta, self.bias, self.state = io, gate, beta, bias, state
        self.key_size, self.value_size = key_size, value_size
        self.l2norm, self.kind, self.raw_beta = l2norm, kind, raw_beta
        self.vector = BYTES * 8 // state.width
        """Elements of the state that a lane moves at once."""
        self.lanes = min(32, key_size // self.vector)
        """Lanes per row."""
        self.vectors = key_size // (self.vector * self.lanes)
        """Vectors of a row per lane."""
        self.rows = 32 // self.lanes
        """Rows that a warp reads at once."""
        self.passes = max(1, min(HELD // self.vectors, value_size // (WARPS * self.rows)))
        """Groups of `rows` rows that a warp updates."""
        self.held = self.vector * self.vectors
        """Elements of a row per lane."""

    @cute.jit
    def __call__(
        self,
        addresses: tuple,
        strides: tuple,
        sequences: cutlass.Int32,
        heads: cutlass.Int32,
        value_heads: cutlass.Int32,
        scale: cutlass.Float32,
        lower: cutlass.Float32,
        beta_scale: cutlass.Float32,
        stream: cuda.CUstream,
    ):
        """Launch the kernel.

        Args:
            addresses: The addresses of q, k, v, g, beta, A_log, dt_bias, state, out, read_slots and
                write_slots.
            strides: The strides of q, k, v, g and beta along their first two axes, in elements.
            sequences: N.
            heads: H.
            value_heads: HV.
            scale: A factor on the queries.
            lower: The lower bound of the log decay, for kind 2.
            beta_scale: A factor on the sigmoid of a raw beta.
            stream: The CUDA stream.
        """
        tiles = self.value_size // (WARPS * self.passes * self.rows)
        self.kernel(addresses, strides, heads, value_heads, scale, lower, beta_scale).launch(
            grid=(tiles, value_heads, sequences), block=(32 * WARPS, 1, 1), stream=stream
        )

    @cute.jit
    def log_decay(self, g, p_a_log, p_bias, i_hv, lower):
        """The log of the decay."""
        x = cutlass.Float32(g)
        if cutlass.const_expr(self.bias is not None):
            x += cutlass.Float32(_number(p_bias + i_hv * (self.bias.width // 8), self.bias))
        if cutlass.const_expr(self.kind != 0):
            rate = cute.exp(_number(p_a_log + i_hv * 4, cutlass.Float32))
            if cutlass.const_expr(self.kind == 1):
                size = cutlass.max(x, -x)
                x = -rate * (cutlass.max(x, cutlass.Float32(0.0)) + cute.log(1.0 + cute.exp(-size)))
            else:
                x = lower / (1.0 + cute.exp(-rate * x))
        return x

    @cute.kernel
    def kernel(
        self,
        addresses: tuple,
        strides: tuple,
        heads: cutlass.Int32,
        value_heads: cutlass.Int32,
        scale: cutlass.Float32,
        lower: cutlass.Float32,
        beta_scale: cutlass.Float32,
    ):
        """Update one tile per block: some rows of one head's state in one sequence."""
        p_q, p_k, p_v, p_g, p_beta, p_a_log, p_bias, p_state, p_out, p_read, p_write = addresses
        s_qt, s_qh, s_kt, s_kh, s_vt, s_vh, s_gt, s_gh, s_bt, s_bh = strides
        lane = cute.arch.lane_idx()
        i_tile, i_hv, i_n = cute.arch.block_idx()
        i_h = i_hv // (value_heads // heads)
        n = cutlass.Int64(i_n)
        i_v = (i_tile * WARPS + cute.arch.warp_idx()) * (self.passes * self.rows) + lane // self.lanes
        o_k = lane % self.lanes * self.vector
        read = _number(p_read + n * 8, cutlass.Int64)
        write = _number(p_write + n * 8, cutlass.Int64)
        p_row = p_out + ((n * value_heads + i_hv) * self.value_size + i_v) * (self.io.width // 8)
        if read < 0:
            if lane % self.lanes == 0:
                for i_p in cutlass.range_constexpr(self.passes):
                    self.store(p_row, i_p, cutlass.Float32(0.0))
        else:
            within = (i_v * self.key_size + o_k) * (self.state.width // 8)
            head_bytes = self.value_size * self.key_size * (self.state.width // 8)
            p_from = p_state + (read * value_heads + i_hv) * head_bytes + within
            p_to = p_state + (write * value_heads + i_hv) * head_bytes + within
            held = cute.make_rmem_tensor((self.vector, self.vectors, self.passes), self.state)
            for i_p in cutlass.range_constexpr(self.passes):
                for i_c in cutlass.range_constexpr(self.vectors):
                    cute.autovec_copy(self.part(p_from, i_p, i_c), held[None, i_c, i_p])

            k = self.load(p_k + (n * s_kt + i_h * s_kh + o_k) * (self.io.width // 8))
            q = self.load(p_q + (n * s_qt + i_h * s_qh + o_k) * (self.io.width // 8))
            kq = self.dot(k, q)
            if cutlass.const_expr(self.l2norm):
                norm_k = cute.rsqrt(self.dot(k, k) + 1e-6)
                norm_q = cute.rsqrt(self.dot(q, q) + 1e-6)
                kq = kq * norm_k * norm_q
                for i in cutlass.range_constexpr(self.held):
                    k[i] = k[i] * norm_k
                    q[i] = q[i] * norm_q
            g = _number(p_g + (n * s_gt + i_hv * s_gh) * (self.gate.width // 8), self.gate)
            decay = cute.exp(self.log_decay(g, p_a_log, p_bias, i_hv, lower))
            beta = _number(p_beta + (n * s_bt + i_hv * s_bh) * (self.beta.width // 8), self.beta)
            weight = cutlass.Float32(beta)
            if cutlass.const_expr(self.raw_beta):
                weight = beta_scale / (1.0 + cute.exp(-weight))

            p_value = p_v + (n * s_vt + i_hv * s_vh + i_v) * (self.io.width // 8)
            for i_p in cutlass.range_constexpr(self.passes):
                state = cute.make_rmem_tensor(self.held, cutlass.Float32)
                for i in cutlass.range_constexpr(self.held):
                    state[i] = cutlass.Float32(held[i % self.vector, i // self.vector, i_p])
                value = _number(p_value + i_p * self.rows * (self.io.width // 8), self.io)
                written = weight * (cutlass.Float32(value) - decay * self.dot(state, k))
                result = scale * (decay * self.dot(state, q) + written * kq)
                if lane % self.lanes == 0:
                    self.store(p_row, i_p, result)
                for i in cutlass.range_constexpr(self.held):
                    held[i % self.vector, i // self.vector, i_p] = self.state(
                        decay * state[i] + written * k[i]
                    )
                for i_c in cutlass.range_constexpr(self.vectors):
                    cute.autovec_copy(held[None, i_c, i_p], self.part(p_to, i_p, i_c))

    @cute.jit
    def part(self, address, i_p, i_c):
        """The lane's `i_c`-th vector in the lane's `i_p`-th row of the state.

        `address` is the address of the lane's first vector in the lane's first row.
        """
        offset = (i_p * self.rows * self.key_size + i_c * self.lanes * self.vector) * (self.state.width // 8)
        return _vector(address + offset, self.state, self.vector, BYTES)

    @cute.jit
    def load(self, address):
        """A lane's elements of a row of k or q, in float32."""
        row = cute.make_rmem_tensor(self.held, cutlass.Float32)
        for i in cutlass.range_constexpr(self.held):
            offset = i // self.vector * self.lanes * self.vector + i % self.vector
            row[i] = cutlass.Float32(_number(address + offset * (self.io.width // 8), self.io))
        return row

    @cute.jit
    def dot(self, left, right):
        """The inner product of two rows that are spread over `lanes` lanes."""
        total = cutlass.Float32(0.0)
        for i in cutlass.range_constexpr(self.held):
            total += left[i] * right[i]
        for level in cutlass.range_constexpr(self.lanes.bit_length() - 1):
            total += cute.arch.shuffle_sync_bfly(total, offset=1 << level)
        return total

    @cute.jit
    def store(self, address, i_p, value):
        """Store one element of the output, for the lane's `i_p`-th row of the state."""
        size = self.io.width // 8
        _vector(address + i_p * self.rows * size, self.io, 1, size)[0] = self.io(value)
