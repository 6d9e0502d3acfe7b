"""The code that the stand-ins for the backends of gated delta and Kimi delta attention layers share."""

from sglang.srt.layers.attention.hybrid_linear_attn_backend import MambaAttnBackendBase


def check_backends(name, *backends):
    for backend in backends:
        if not backend.is_triton():
            raise ValueError(f"Unsupported {name} backend: {backend}")


class DeltaAttnBackend(MambaAttnBackendBase):
    dispatcher: type

    def __init__(self, model_runner):
        super().__init__(model_runner)
        backends = model_runner.linear_attn_backends
        self.kernel_dispatcher = self.dispatcher(backends.decode, backends.prefill, backends.verify)
        self.recorded = {}

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        self.forward_metadata = self.recorded[forward_batch.batch_size]

    def forward_decode(self, layer, forward_batch, mixed_qkv, a, b, **kwargs):
        return "SGLang's decode"

    def forward_extend(self, layer, forward_batch, mixed_qkv, a, b, **kwargs):
        return "SGLang's extend"

    def supports_prefill_graph_extend(self):
        return True
