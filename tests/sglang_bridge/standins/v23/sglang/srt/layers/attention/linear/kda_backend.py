"""Stand-in: the backend of Kimi delta attention layers, without SGLang's own kernels."""

from standin_delta import DeltaAttnBackend, check_backends


class KDAKernelDispatcher:
    def __init__(self, decode_backend, prefill_backend, verify_backend):
        check_backends("KDA", decode_backend, prefill_backend, verify_backend)


class KDAAttnBackend(DeltaAttnBackend):
    dispatcher = KDAKernelDispatcher

    def __init__(self, model_runner):
        super().__init__(model_runner)
        self.accept_lens_pool = model_runner.accept_lens_pool
