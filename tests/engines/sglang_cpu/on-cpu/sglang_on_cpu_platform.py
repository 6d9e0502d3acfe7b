"""A platform of SGLang: a CPU that runs Triton kernels in the interpreter.

SGLang imports this module while it chooses a platform, so the module imports nothing that needs a chosen one.
"""

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class InterpretedCpu(CpuDeviceMixin, SRTPlatform):
    """A CPU as an out-of-tree platform."""

    _enum = PlatformEnum.OOT

    def get_default_attention_backend(self):
        """The name of SGLang's attention backend in plain torch."""
        return "torch_native"

    def support_mamba_cache_extra_buffer(self):
        """Whether the prefix cache can keep states after a part of a prompt."""
        return True

    def get_speculative_cache_locs_fn(self):
        """The function that returns the places of drafted tokens in the cache."""
        import sglang_on_cpu_helpers

        return sglang_on_cpu_helpers.draft_places

    def supports_speculative_algorithm(self, algorithm):
        """Whether drafts of this algorithm can be verified."""
        return algorithm == "NGRAM"
