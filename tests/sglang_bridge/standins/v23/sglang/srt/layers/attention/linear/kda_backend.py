"""Stand-in: the backend of Kimi delta attention layers, without SGLang's own kernels."""

from sglang.srt.layers.attention.linear.delta import DeltaAttnBackend, DeltaKernelDispatcher


class KDAKernelDispatcher(DeltaKernelDispatcher):
    name = "KDA"


class KDAAttnBackend(DeltaAttnBackend):
    dispatcher = KDAKernelDispatcher

    def __init__(self, model_runner):
        super().__init__(model_runner)
        self.accept_lens_pool = model_runner.accept_lens_pool
