"""Stand-in: the backend of Mamba2 layers, without SGLang's own kernels."""


class MambaAttnBackendBase:
    def __init__(self, model_runner):
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.forward_metadata = None
        self.kept = []

    def init_forward_metadata(self, forward_batch):
        self.forward_metadata = forward_batch.metadata

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        raise NotImplementedError

    def _track_mamba_state_decode(self, forward_batch, conv_states, ssm_states, cache_indices, layer_id=None):
        self.kept.append(layer_id)

    def _track_pools(self):
        return None

    def update_verify_buffers_to_fill_after_draft(self, spec_info, cuda_graph_bs):
        pass


class Mamba2AttnBackend(MambaAttnBackendBase):
    def __init__(self, model_runner):
        super().__init__(model_runner)

    def init_forward_metadata(self, forward_batch):
        super().init_forward_metadata(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        raise NotImplementedError

    def forward(
        self,
        mixer,
        hidden_states,
        output,
        layer_id,
        forward_batch,
        mup_vector=None,
        use_triton_causal_conv=False,
    ):
        return "SGLang's forward"
