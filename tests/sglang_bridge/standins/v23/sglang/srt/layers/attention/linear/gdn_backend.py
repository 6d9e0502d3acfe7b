"""Stand-in: the backend of gated delta layers, without SGLang's own kernels."""

from sglang.srt.layers.attention.linear.delta import DeltaAttnBackend, DeltaKernelDispatcher


class GDNKernelDispatcher(DeltaKernelDispatcher):
    name = "GDN"


class GDNAttnBackend(DeltaAttnBackend):
    dispatcher = GDNKernelDispatcher
