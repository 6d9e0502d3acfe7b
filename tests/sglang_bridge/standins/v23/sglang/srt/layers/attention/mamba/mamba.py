"""Stand-in: a Mamba2 layer that is whole on one device."""

import torch
from torch import nn


class MambaMixer2(nn.Module):
    def __init__(
        self,
        cache_params,
        hidden_size,
        use_conv_bias,
        use_bias,
        n_groups=1,
        rms_norm_eps=1e-5,
        activation="silu",
    ):
        super().__init__()
        shape = cache_params.shape
        self.tp_size = 1
        self.num_heads, self.head_dim, self.n_groups = shape.num_heads, shape.head_dim, n_groups
        self.ssm_state_size, self.conv_dim = shape.ssm_state_size, shape.conv_dim
        self.intermediate_size, self.activation = shape.intermediate_size, activation
        self.conv1d = nn.Conv1d(shape.conv_dim, shape.conv_dim, shape.conv_kernel, groups=shape.conv_dim)
        self.A, self.D = (nn.Parameter(torch.empty(shape.num_heads)) for _ in range(2))
        self.dt_bias = nn.Parameter(torch.empty(shape.num_heads))

    def in_proj(self, hidden_states):
        return hidden_states, None

    def norm(self, x, gate):
        return torch.cat([x, gate], dim=-1)

    def out_proj(self, x):
        return x, None
