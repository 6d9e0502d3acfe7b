"""Stand-in: the backend of gated delta layers, without SGLang's own kernels."""

from standin_delta import DeltaAttnBackend, check_backends


class GDNKernelDispatcher:
    def __init__(self, decode_backend, prefill_backend, verify_backend=None):
        check_backends("GDN", decode_backend, prefill_backend, verify_backend)


class GDNAttnBackend(DeltaAttnBackend):
    dispatcher = GDNKernelDispatcher
