"""The known versions of SGLang: names of modules and functions, and differences in behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from switchrail.errors import BridgeError
from switchrail.nearest import unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of SGLang. Modules and functions are dotted paths; a backend's methods are bare names.

    Attributes:
        choices: The module with the lists of valid names of backends.
        linear_module: The module with the enum of linear backends.
        has_custom: Whether that enum maps unknown names to one member, `CUSTOM`.
        verify_choice: Whether the backend of verification can be chosen.
        extra_buffer: The function that decides whether a server's linear backend can keep states within a
            prompt for the prefix cache; None if SGLang has no such function.
        linear_ops: The ops of those linear layers that the bridge serves.
        records_prompts: The method of a linear attention backend that tells whether prompts can be captured
            in graphs; None if there is none.
        graph_hooks: For each method of a linear attention backend that prepares a pass for a graph, the hook
            that runs after it.
        attention_made: The dotted path of the method that makes a model runner's attention backends.
        shared_windows: The function that decides whether the convolution windows of drafted tokens overlap in
            memory; None if they never do.
        speculation: Returns a model runner's options of speculative decoding.
        uncommitted: The draft algorithms with which SGLang does not update the states of linear layers.
        late_drafts: The method of a linear attention backend that reads drafts made after the pass was
            planned; None if there is none.
        chunked_prefixes: Whether cached prefixes of latent attention can be expanded in chunks.
        location: Whether SGLang's cache takes the rows to write as a `KVWriteLoc`.
        captures: Returns whether a model runner's options let decode steps be captured as graphs.
    """

    choices: str
    linear_module: str = "sglang.srt.layers.attention.linear.utils"
    has_custom: bool
    verify_choice: bool
    extra_buffer: str | None
    linear_ops: tuple[str, ...]
    records_prompts: str | None
    graph_hooks: Mapping[str, Callable[..., None]]
    attention_made: str
    shared_windows: str | None
    speculation: Callable[[Any], Any]
    uncommitted: tuple[str, ...]
    late_drafts: str | None
    chunked_prefixes: bool
    location: bool
    captures: Callable[[Any], bool]


def _out_graph(result: None, backend: Any, forward_batch: Any, in_capture: bool = False) -> None:
    if backend.switchrail is not None:
        mode = forward_batch.forward_mode
        backend.switchrail.begin_graph(forward_batch.batch_size, mode, capture=in_capture)


def _capture(
    result: None,
    backend: Any,
    bs: int,
    num_tokens: int,
    req_pool_indices: Any,
    seq_lens: Any,
    encoder_lens: Any,
    forward_mode: Any,
    spec_info: Any,
) -> None:
    if backend.switchrail is not None:
        backend.switchrail.begin_graph(bs, forward_mode, capture=True)


def _replay(
    result: None,
    backend: Any,
    bs: int,
    req_pool_indices: Any,
    seq_lens: Any,
    seq_lens_sum: Any,
    encoder_lens: Any,
    forward_mode: Any,
    spec_info: Any,
    seq_lens_cpu: Any,
) -> None:
    if backend.switchrail is not None:
        backend.switchrail.begin_graph(bs, forward_mode, capture=False)


def _options(model_runner: Any) -> Any:
    from sglang.srt.runtime_context import get_spec

    return get_spec()


def _captures(model_runner: Any) -> bool:
    from sglang.srt.runtime_context import get_exec

    # SGLang derives this option from all others that concern graphs.
    config = get_exec().graph.cuda_graph_config
    return config is None or config.decode.backend != "disabled"


_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"

_KNOWN: Mapping[str, Version] = {
    "0.5.11": Version(
        choices="sglang.srt.server_args",
        has_custom=False,
        verify_choice=False,
        extra_buffer=None,
        linear_ops=("gated_delta",),
        records_prompts=None,
        graph_hooks={
            "init_forward_metadata_capture_cuda_graph": _capture,
            "init_forward_metadata_replay_cuda_graph": _replay,
        },
        attention_made=f"{_RUNNER}.init_attention_backend",
        shared_windows=None,
        speculation=lambda model_runner: model_runner.server_args,
        uncommitted=("NGRAM",),
        late_drafts=None,
        chunked_prefixes=False,
        location=False,
        captures=lambda model_runner: not model_runner.server_args.disable_cuda_graph,
    ),
    "0.5.23": Version(
        choices="sglang.srt.arg_groups.choices",
        has_custom=True,
        verify_choice=True,
        extra_buffer="sglang.srt.arg_groups.overrides.supports_mamba_cache_extra_buffer",
        linear_ops=("gated_delta", "kda", "lightning", "mamba2", "short_conv"),
        records_prompts="supports_prefill_graph_extend",
        graph_hooks={"init_forward_metadata_out_graph": _out_graph},
        attention_made=f"{_RUNNER}.init_attention_backends",
        shared_windows="sglang.srt.mem_cache.memory_pool.conv_window_dedup_enabled",
        speculation=_options,
        uncommitted=(),
        late_drafts="update_verify_buffers_to_fill_after_draft",
        chunked_prefixes=True,
        location=True,
        captures=_captures,
    ),
}

VERSIONS = tuple(_KNOWN)
"""The versions of SGLang that the bridge knows."""


def version_of(number: str) -> Version:
    """The version with a number, such as "0.5.23".

    Raises:
        BridgeError: The version is not known.
    """
    try:
        return _KNOWN[number]
    except KeyError:
        problem = f"no bridge to SGLang {number}: its internals may differ from those of the known versions"
        raise unknown(BridgeError, problem, number, VERSIONS, found=number) from None
