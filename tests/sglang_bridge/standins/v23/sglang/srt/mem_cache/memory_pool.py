"""Stand-in for SGLang's class of cache locations and its switch for shared convolution windows."""

from dataclasses import dataclass
from typing import Any


@dataclass
class KVWriteLoc:
    loc: Any
    swa_loc: Any = None


def conv_window_dedup_enabled(is_npu, is_cpu, speculative_eagle_topk, is_kda):
    return True
