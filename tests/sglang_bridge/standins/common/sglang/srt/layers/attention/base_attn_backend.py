"""Stand-in: the interface of attention backends."""


class AttentionBackend:
    def init_forward_metadata(self, forward_batch):
        raise NotImplementedError

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        raise NotImplementedError

    def init_cuda_graph_state(self, max_bs, max_num_tokens):
        raise NotImplementedError

    def get_cuda_graph_seq_len_fill_value(self):
        raise NotImplementedError

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        raise NotImplementedError

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        raise NotImplementedError

    def update_verify_buffers_to_fill_after_draft(self, spec_info, cuda_graph_bs):
        raise NotImplementedError
