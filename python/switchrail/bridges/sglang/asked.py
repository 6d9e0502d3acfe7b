"""Reads which of Switchrail's names the user chose for layers with states, and hooks SGLang's classes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from switchrail.bridges.sglang.drafts import drafts_of
from switchrail.bridges.sglang.names import OURS, is_ours
from switchrail.bridges.sglang.platform import has_plugins_platform
from switchrail.bridges.sglang.states import Kind, ServedLayers, UnknownLayersError
from switchrail.errors import BridgeError

if TYPE_CHECKING:
    from switchrail.bridges.sglang.versions import Version
    from switchrail.ops.batch import Phase
    from switchrail.runtime import Runtime


_log = logging.getLogger("switchrail")


def serve(runtime: Runtime, version: Version, kind_of: Callable[[Any], Kind], owner: str) -> None:
    """Hooks a backend class of SGLang, so that Switchrail can serve its layers.

    Each instance gets an attribute `switchrail`: the `ServedLayers` that plans the instance's forward passes,
    or None if SGLang's own kernels serve them.

    Args:
        runtime: The runtime.
        version: SGLang's version.
        kind_of: Returns the kind of an instance's layers.
        owner: The dotted path of the class.
    """
    hooks = runtime.hooks

    def made(result: None, backend: Any, model_runner: Any) -> None:
        drafts = drafts_of(version, model_runner)
        asked = _asked(model_runner, version)
        if drafts is None:
            asked.pop("verify", None)
        backend.switchrail = None
        if not asked:
            return
        _check_accepted_lengths(backend, asked)
        if drafts is not None:
            _check_committed(version, model_runner)
        try:
            backend.switchrail = ServedLayers(
                runtime, version, kind_of(backend), backend, model_runner, asked, drafts
            )
        except UnknownLayersError as error:
            _leave_to_sglang(runtime, asked, error)

    def began(result: None, backend: Any, forward_batch: Any) -> None:
        if backend.switchrail is not None:
            backend.switchrail.begin(forward_batch)

    def drafted(result: None, backend: Any, spec_info: Any, cuda_graph_bs: int | None) -> None:
        if backend.switchrail is not None and cuda_graph_bs is not None:
            backend.switchrail.reread_drafts(cuda_graph_bs)

    hooks.add(f"{owner}.__init__", made, "after", source=OURS)
    if version.late_drafts is not None:
        hooks.add(f"{owner}.{version.late_drafts}", drafted, "after", source=OURS)
    hooks.add(f"{owner}.init_forward_metadata", began, "after", source=OURS)
    for method, hook in version.graph_hooks.items():
        hooks.add(f"{owner}.{method}", hook, "after", source=OURS)


def refuse(runtime: Runtime, version: Version, owner: str) -> None:
    """Hooks a backend class of SGLang whose layers the bridge does not serve in this version.

    If the user chose one of Switchrail's names for these layers, the hook makes the server fail at its start.
    SGLang itself might ignore the name.

    Args:
        runtime: The runtime.
        version: SGLang's version.
        owner: The dotted path of the class.
    """

    def refused(backend: Any, model_runner: Any) -> None:
        asked = _asked(model_runner, version)
        if asked:
            model = type(model_runner.model).__name__
            problem = f"Switchrail does not serve {model}'s layers with states in this version of SGLang"
            _leave_to_sglang(runtime, asked, UnknownLayersError(problem, found=model))

    runtime.hooks.add(f"{owner}.__init__", refused, "before", source=OURS)


def _leave_to_sglang(runtime: Runtime, asked: Mapping[Phase, str], error: UnknownLayersError) -> None:
    """Raises the error, or only logs it if all names may be the default that a platform plugin sets."""
    if not has_plugins_platform(runtime) or {*asked.values()} != {OURS}:
        raise error
    _log.warning("%s; SGLang's own kernels serve them, since no backend was chosen by name", error)


def _check_accepted_lengths(backend: Any, asked: Mapping[Phase, str]) -> None:
    """Refuses to serve prompts if SGLang's verification needs states that only SGLang's own kernels write."""
    if getattr(backend, "accept_lens_pool", None) is None or "prefill" not in asked or "verify" in asked:
        return
    raise BridgeError(
        f"{asked['prefill']} was chosen for prompts, but FlashInfer, which verifies drafts, needs states "
        "that only SGLang's own kernels write for prompts; choose triton or one of Switchrail's names for "
        "--linear-attn-verify-backend",
        found=asked["prefill"],
    )


def _check_committed(version: Version, model_runner: Any) -> None:
    """Refuses drafts after which SGLang does not update the states, so that later tokens would be wrong."""
    algorithm = version.speculation(model_runner).speculative_algorithm
    if algorithm in version.uncommitted:
        raise BridgeError(
            f"this version of SGLang does not update the states of linear layers after {algorithm} drafts, "
            f"so its tokens would be wrong; choose another --speculative-algorithm",
            found=algorithm,
        )


def attach(runtime: Runtime, version: Version) -> None:
    """Hooks those functions of SGLang that depend on a backend's name but know only SGLang's own names."""

    def keeps_states(original: Callable[..., bool], view: Any, hf_config: Any) -> bool:
        if is_ours(view.linear_attn_backend):
            view = _AsTriton(view)
        return original(view, hf_config)

    def shares_windows(original: Callable[..., bool], *arguments: Any, **named: Any) -> bool:
        """Whether the convolution windows of drafted tokens overlap; never if Switchrail verifies drafts."""
        return not is_ours(_verify_name()) and original(*arguments, **named)

    if version.extra_buffer is not None:
        runtime.hooks.add(version.extra_buffer, keeps_states, "around", source=OURS)
    if version.shared_windows is not None:
        runtime.hooks.add(version.shared_windows, shares_windows, "around", source=OURS)


class _AsTriton:
    """The server's arguments, but with the linear backend `triton`.

    For this backend, SGLang's prefix cache keeps states from within a prompt.
    """

    linear_attn_backend = "triton"

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def _asked(model_runner: Any, version: Version) -> dict[Phase, str]:
    """Switchrail's names that the user chose, by phase.

    SGLang 0.5.11 has no option for verification. There, Switchrail verifies drafts if it serves decode.
    """
    if version.verify_choice:
        backends = model_runner.linear_attn_backends
        decode, prefill = backends.decode.value, backends.prefill.value
        verify = _verify_name()
    else:
        from sglang.srt.layers.attention.linear import utils

        decode = utils.get_linear_attn_decode_backend().value
        prefill = utils.get_linear_attn_prefill_backend().value
        verify = OURS if is_ours(decode) else decode
    names: dict[Phase, str] = {"decode": decode, "prefill": prefill, "verify": verify}
    return {phase: name for phase, name in names.items() if is_ours(name)}


def _verify_name() -> str:
    """The name of the backend that verifies drafts. Only for SGLang 0.5.23, where it can be chosen."""
    from sglang.srt.runtime_context import get_exec

    chosen = get_exec().mamba
    name = (
        chosen.linear_attn_verify_backend or chosen.linear_attn_decode_backend or chosen.linear_attn_backend
    )
    return str(name)
