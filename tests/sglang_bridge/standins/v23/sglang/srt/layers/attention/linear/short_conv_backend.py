"""Stand-in: the backend of layers that are convolutions only."""

from sglang.srt.layers.attention.hybrid_linear_attn_backend import MambaAttnBackendBase


class ShortConvAttnBackend(MambaAttnBackendBase):
    def __init__(self, model_runner):
        super().__init__(model_runner)

    def init_forward_metadata(self, forward_batch):
        super().init_forward_metadata(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        raise NotImplementedError
