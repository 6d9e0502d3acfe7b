"""Stand-in: a softmax attention layer."""

from enum import Enum

from torch import nn


class AttentionType(Enum):
    DECODER = "decoder"
    ENCODER_ONLY = "encoder_only"


class RadixAttention(nn.Module):
    def __init__(
        self,
        num_heads,
        head_dim,
        scaling,
        num_kv_heads,
        layer_id,
        logit_cap=0.0,
        v_head_dim=-1,
        sliding_window_size=-1,
        is_cross_attention=False,
        pos_encoding_mode="NONE",
        logit_capping_method="tanh",
        quant_config=None,
        attn_type=AttentionType.DECODER,
        use_irope=False,
        prefix="",
        use_prefill_attention_wrapper=True,
    ):
        super().__init__()
        self.tp_q_head_num = num_heads
        self.tp_k_head_num = self.tp_v_head_num = num_kv_heads
        self.qk_head_dim = head_dim
        self.v_head_dim = v_head_dim if v_head_dim != -1 else head_dim
        self.__dict__.update(scaling=scaling, layer_id=layer_id, logit_cap=logit_cap, attn_type=attn_type)
        self.__dict__.update(sliding_window_size=sliding_window_size, is_cross_attention=is_cross_attention)
        self.xai_temperature_len = -1
