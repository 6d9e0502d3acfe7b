"""Stand-in: the backend of Kimi delta attention layers, without SGLang's own kernels."""


class KDAKernelDispatcher:
    def __init__(self, decode_backend, prefill_backend, verify_backend):
        for backend in (decode_backend, prefill_backend, verify_backend):
            if not backend.is_triton():
                raise ValueError(f"Unsupported KDA backend: {backend}")


class KDAAttnBackend:
    def __init__(self, model_runner):
        backends = model_runner.linear_attn_backends
        self.kernel_dispatcher = KDAKernelDispatcher(backends.decode, backends.prefill, backends.verify)
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.forward_metadata = None
        self.kept = []
        self.recorded = {}

    def init_forward_metadata(self, forward_batch):
        self.forward_metadata = forward_batch.metadata

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        self.forward_metadata = self.recorded[forward_batch.batch_size]

    def forward_decode(self, layer, forward_batch, mixed_qkv, a, b, **kwargs):
        return "SGLang's decode"

    def forward_extend(self, layer, forward_batch, mixed_qkv, a, b, **kwargs):
        return "SGLang's extend"

    def supports_prefill_graph_extend(self):
        return True

    def _track_mamba_state_decode(self, forward_batch, conv_states, ssm_states, cache_indices, layer_id=None):
        self.kept.append(layer_id)

    def _track_pools(self):
        return None

    def update_verify_buffers_to_fill_after_draft(self, spec_info, cuda_graph_bs):
        pass
