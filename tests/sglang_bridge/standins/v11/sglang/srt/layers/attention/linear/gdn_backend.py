"""Stand-in: the backend of gated delta layers, without SGLang's own kernels."""

from sglang.srt.layers.attention.linear import utils


class GDNKernelDispatcher:
    def __init__(self, decode_backend, prefill_backend):
        for backend in (decode_backend, prefill_backend):
            if not backend.is_triton():
                raise ValueError(f"Unsupported GDN backend: {backend}")


class MambaAttnBackendBase:
    def init_forward_metadata_capture_cuda_graph(
        self, bs, num_tokens, req_pool_indices, seq_lens, encoder_lens, forward_mode, spec_info
    ):
        self.forward_metadata = self.recorded[bs]

    def init_forward_metadata_replay_cuda_graph(
        self,
        bs,
        req_pool_indices,
        seq_lens,
        seq_lens_sum,
        encoder_lens,
        forward_mode,
        spec_info,
        seq_lens_cpu,
    ):
        self.forward_metadata = self.recorded[bs]

    def _track_mamba_state_decode(self, forward_batch, conv_states, ssm_states, cache_indices):
        self.kept.append(None)


class GDNAttnBackend(MambaAttnBackendBase):
    def __init__(self, model_runner):
        self.kernel_dispatcher = GDNKernelDispatcher(
            utils.get_linear_attn_decode_backend(), utils.get_linear_attn_prefill_backend()
        )
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.forward_metadata = None
        self.recorded = {}
        self.kept = []

    def init_forward_metadata(self, forward_batch):
        self.forward_metadata = forward_batch.metadata

    def forward_decode(self, layer, forward_batch, mixed_qkv, a, b, **kwargs):
        return "SGLang's decode"

    def forward_extend(self, layer, forward_batch, mixed_qkv, a, b, **kwargs):
        return "SGLang's extend"
