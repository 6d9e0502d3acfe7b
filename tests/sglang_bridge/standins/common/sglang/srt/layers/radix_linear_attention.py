"""Stand-in: a linear attention layer."""

from torch import nn


class RadixLinearAttention(nn.Module):
    def __init__(
        self,
        layer_id,
        num_q_heads,
        num_k_heads,
        num_v_heads,
        head_q_dim,
        head_k_dim,
        head_v_dim,
        conv_weights=None,
        bias=None,
        activation="silu",
        A_log=None,
        dt_bias=None,
        lower_bound=None,
    ):
        super().__init__()
        self.layer_id = layer_id
        self.num_q_heads, self.num_k_heads, self.num_v_heads = num_q_heads, num_k_heads, num_v_heads
        self.head_q_dim, self.head_k_dim, self.head_v_dim = head_q_dim, head_k_dim, head_v_dim
        self.q_dim, self.k_dim = num_q_heads * head_q_dim, num_k_heads * head_k_dim
        self.v_dim = num_v_heads * head_v_dim
        self.conv_weights, self.bias, self.activation = conv_weights, bias, activation
        self.A_log, self.dt_bias, self.lower_bound = A_log, dt_bias, lower_bound
