"""SGLang in a process without other ranks, on a CPU."""

import os
from typing import Any

from sglang.srt.distributed import parallel_state
from sglang.srt.runtime_context import get_context, get_parallel


def prepare(**ranks: Any) -> None:
    """Makes this process SGLang's only rank.

    Args:
        **ranks: The ranks to set, such as `attn_tp_rank=0`.
    """
    get_context().override_server_args(device="cpu").install()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29677")
    parallel_state.init_distributed_environment(1, 0, "tcp://127.0.0.1:29677", 0, "gloo")
    parallel_state.initialize_model_parallel()
    get_parallel().override_permanently(**ranks)
