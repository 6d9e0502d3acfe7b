"""Stand-in: the backend of lightning attention layers, without SGLang's own kernels."""

from sglang.srt.layers.attention.hybrid_linear_attn_backend import MambaAttnBackendBase


class LightningAttentionBackend(MambaAttnBackendBase):
    def __init__(self, model_runner):
        super().__init__(model_runner)
        self.kv_cache_dtype_str = model_runner.kv_cache_dtype_str
        self.tp_slope = model_runner.model.slopes
        self.linear_backend = model_runner.model.linear_backend

    def init_forward_metadata(self, forward_batch):
        super().init_forward_metadata(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        raise NotImplementedError

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return "SGLang's extend"

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return "SGLang's decode"
