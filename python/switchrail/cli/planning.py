"""Plans a checkpoint as the engine would, without importing torch or a backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from switchrail import _core
from switchrail.checks import is_count
from switchrail.cli.checkpoint import with_draft
from switchrail.cli.choices import Choices, loaded_runtime
from switchrail.errors import PlatformError

if TYPE_CHECKING:
    from switchrail import EngineOptions, Layout, Platform, RoutePlan, Runtime
    from switchrail.engine.capture import CapturePlan

NOT_IMPORTED = "no backend was imported; `switchrail doctor` imports those for this machine's device"


class Planned(NamedTuple):
    """The plans and options that an engine would use for a checkpoint.

    Attributes:
        platform: The platform.
        plan: The routes.
        capture: The planned captures, or why there are none; None if only one phase is planned.
        runtime: The runtime that made the plan.
        checkpoint: The checkpoint's folder, or its `config.json`.
        options: The engine's options.
        dtype: The name of the dtype.
        make: Makes plans with other arguments; a `plan_routes` with the known arguments filled in.
        drafts: The routes of the draft model, or of each step of the model's own head if the option `draft`
            is `mtp` or None. Only a draft model whose drafts are trees has routes for `verify`. Empty for
            `ngram`, and if there is no draft and no head.
    """

    platform: Platform
    plan: RoutePlan
    capture: CapturePlan | str | None
    runtime: Runtime
    checkpoint: Path
    options: EngineOptions
    dtype: str
    make: Callable[..., RoutePlan]
    drafts: list[RoutePlan]

    @property
    def has_head(self) -> bool:
        """Whether `drafts` are the steps of the model's own head."""
        from switchrail.engine.options import MTP

        return self.options.draft in (None, MTP)


def planned(
    checkpoint: Path,
    choices: Choices,
    *,
    device: str | None,
    dtype: str | None,
    described_device: str | None = None,
    phase: str | None = None,
    draft: str | None = None,
    download: bool = False,
    draft_files: Sequence[str] = (),
) -> Planned:
    """Loads the plugins and plans a checkpoint. Arguments are the command's options of the same names.

    `described_device` is the option `--as`. `draft_files` are patterns of the files that are needed of a
    draft model; by default its configuration.

    Raises:
        SwitchrailError: The checkpoint does not exist or is invalid; also the errors of `Runtime.load`,
            `Runtime.find_platform` and `Runtime.plan`.
    """
    from switchrail.engine.capture import has_trees, plan_capture
    from switchrail.engine.dtypes import choose_dtype
    from switchrail.engine.files import CONFIG, no_checkpoint, read_object
    from switchrail.engine.hub import find_checkpoint
    from switchrail.engine.options import MTP, options_on
    from switchrail.engine.routes import layout_of, plan_routes, with_trees

    checkpoint = find_checkpoint(checkpoint, download=download, files=[CONFIG])
    if not os.path.exists(checkpoint):
        raise no_checkpoint(checkpoint)
    runtime = loaded_runtime(choices)
    read_config = partial(read_object, checkpoint / CONFIG if checkpoint.is_dir() else checkpoint)
    layout = layout_of(runtime, checkpoint, read_config)
    platform = _platform(runtime, device, described_device)
    config_values = read_config()
    text = config_values.get("text_config")
    if isinstance(text, dict):  # the language model of a multimodal model
        config_values = {**config_values, **text}
    options = options_on(platform, {**choices.engine, **({} if draft is None else {"draft": draft})})
    options = with_draft(options, download=download, files=draft_files or [CONFIG])
    chosen_dtype = choose_dtype(dtype, config_values, platform.hardware)
    make = partial(
        plan_routes,
        runtime,
        layout=layout,
        platform=platform,
        dtype=chosen_dtype,
        page_size=options.page_size,
        state_dtype=options.state_dtype,
    )
    chosen = {key: name for key, name in choices.backends.items() if _is_for(key, phase)}
    trees = has_trees(options)
    plan = make(
        preferences=with_trees(make, layout, chosen) if trees and phase in (None, "verify") else chosen,
        phases=_phases(options) if phase is None else (phase,),
    )
    longest = options.max_length or config_values.get("max_position_embeddings")
    capture: CapturePlan | str | None = None
    if phase is None:
        capture = "the config doesn't say how long sequences are"
        if is_count(longest):
            capture = plan_capture(
                make,
                plan,
                platform=platform,
                options=options,
                max_length=longest,
                preferences=choices.backends,
            )
    drafts = []
    for own in _draft_layouts(runtime, checkpoint, config_values, layout, options):
        again = partial(make, layout=own)
        is_tree = trees and options.draft != MTP
        phases = [one for one in _core.PHASES if phase in (None, one) and (is_tree or one != "verify")]
        if phases:
            preferred = with_trees(again, own, None) if "verify" in phases else None
            drafts.append(again(preferences=preferred, phases=phases))
    return Planned(platform, plan, capture, runtime, checkpoint, options, chosen_dtype, make, drafts)


def _draft_layouts(
    runtime: Runtime, checkpoint: Path, config: dict[str, Any], layout: Layout, options: EngineOptions
) -> list[Layout]:
    """The layouts of the chosen draft, or of the model's own draft head if no draft is chosen."""
    from switchrail.engine.files import CONFIG, read_object
    from switchrail.engine.heads import find_mtp
    from switchrail.engine.options import MTP
    from switchrail.engine.routes import layout_of

    draft = options.draft
    if draft is None:
        return layout.drafts
    if draft == MTP:
        return find_mtp(checkpoint if checkpoint.is_dir() else checkpoint.parent, config, layout)
    if isinstance(draft, Path):
        return [layout_of(runtime, draft, partial(read_object, draft / CONFIG))]
    return []


def _phases(options: EngineOptions) -> tuple[str, ...]:
    """The phases that the engine runs."""
    return ("prefill", "decode") if options.draft is None else tuple(_core.PHASES)


def _is_for(key: str, phase: str | None) -> bool:
    """Whether a preference applies to the planned phase; True if all phases are planned."""
    own = key.partition(".")[2]
    return phase is None or own == phase or own not in _core.PHASES


def _platform(runtime: Runtime, device: str | None, described_device: str | None) -> Platform:
    from switchrail.platforms import described
    from switchrail.platforms.builtin import is_builtin

    if described_device is not None:
        if device is not None:
            raise typer.BadParameter("give either --device or --as, not both")
        return described(described_device)
    try:
        return runtime.find_platform(device)
    except PlatformError as error:
        if device is not None and is_builtin(device):
            error.__notes__ = ["--as cuda:9.0 plans for a device that this machine lacks"]  # type: ignore[attr-defined]
        raise
