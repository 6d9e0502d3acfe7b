"""Stand-in: the enum of linear backends, in which all unknown names are the same member."""

from enum import Enum


class LinearAttnKernelBackend(Enum):
    TRITON = "triton"
    FLASHINFER = "flashinfer"
    CUSTOM = "custom"

    @classmethod
    def _missing_(cls, value):
        return cls.CUSTOM

    def is_triton(self):
        return self == LinearAttnKernelBackend.TRITON

    def is_custom(self):
        return self == LinearAttnKernelBackend.CUSTOM
