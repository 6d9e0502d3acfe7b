"""`switchrail run`: generates text with a checkpoint."""

from __future__ import annotations

import logging
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import switchrail
from switchrail.cli import flags
from switchrail.cli.capturing import make_engine
from switchrail.cli.checkpoint import CheckpointArgument, find_folder
from switchrail.cli.choices import loaded_runtime, read_choices
from switchrail.cli.logs import LOG, without_failures
from switchrail.cli.planning import planned
from switchrail.cli.show import console, platform_text, plugin_table, print_json, route_table
from switchrail.engine.hub import FILES
from switchrail.engine.prompts import check_length, prompt_named, tokenize
from switchrail.errors import RequestError, SwitchrailError
from switchrail.foreign import escaped, in_lines
from switchrail.plugins.place import failing_place

if TYPE_CHECKING:
    from switchrail import EngineOptions, Output, RoutePlan, Runtime, SamplingParams
    from switchrail.engine import Event, Stats


def run(
    context: typer.Context,
    checkpoint: CheckpointArgument,
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A prompt; can be given several times.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with one prompt per line; empty lines are skipped."),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="Maximum number of tokens to generate for a prompt.")
    ] = 128,
    temperature: Annotated[float, typer.Option(help="Temperature; 0 takes the most likely token.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among this many of the most likely tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Draw among the most likely tokens whose probabilities add up to this.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Draw among tokens at least this likely, relative to the most likely token.")
    ] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Seed of each prompt's random numbers.")] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A string that ends the text; can be given several times."),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue after the model's end tokens.")
    ] = False,
    draft: flags.Draft = None,
    backend: flags.Backend = None,
    config: flags.Config = None,
    device: flags.Device = None,
    dtype: flags.Dtype = None,
    download: flags.Download = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only warnings and errors to standard error.")
    ] = False,
    with_traceback: Annotated[
        bool, typer.Option("--traceback", help="Print the traceback if a backend raises an exception.")
    ] = False,
    as_json: flags.Json = False,
) -> None:
    """Continue prompts, greedily unless options say otherwise.

    The generated text goes to standard output; prompts, tables and statistics go to standard error.
    """
    texts = [*(prompt or ()), *(_lines(prompts) if prompts else ())]
    if not texts:
        raise RequestError("there is no prompt; valid: --prompt TEXT, --prompts FILE")
    params = switchrail.SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    choices = read_choices(config, backend)
    folder = find_folder(checkpoint, download=download)
    if quiet:
        context.call_on_close(partial(LOG.setLevel, LOG.level))
        LOG.setLevel(logging.WARNING)
    told = console(stderr=True, quiet=quiet or as_json)
    with nullcontext() if told.quiet else without_failures():
        runtime = loaded_runtime(choices)
    platform = runtime.find_platform(device)
    told.print(platform_text(platform), plugin_table(runtime.plugins), sep="\n\n")
    # Wrong arguments are refused here, before torch and transformers are imported.
    options = planned(
        folder, choices, device=device, dtype=dtype, draft=draft, download=download, draft_files=FILES
    ).options
    _check_prompts(runtime, folder, texts, params, options)
    if quiet or not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
    chosen = {"dtype": dtype, "backends": choices.backends, "options": options}
    with make_engine(told, folder, runtime=runtime, device=platform, **chosen) as engine:
        if as_json:
            with _named_failures(with_traceback=with_traceback):
                outputs = engine.generate(texts, params)
            print_json(
                {
                    "platform": asdict(engine.platform.identity),
                    "plugins": [plugin.to_dict() for plugin in runtime.plugins],
                    "routes": _routes(engine.plan),
                    "outputs": [_output(output) for output in outputs],
                    "prefill_tokens_per_s": engine.stats.prefill_tokens_per_s,
                    "decode_tokens_per_s": engine.stats.decode_tokens_per_s,
                    **(_acceptance(engine.stats) if options.draft is not None else {}),
                }
            )
        else:
            told.print("", route_table(engine.plan), "", sep="\n")
            with _named_failures(with_traceback=with_traceback):
                outputs = _speak(console(), told, _until_interrupted(engine.stream(texts, params)), texts)
            _print_stats(told, engine.stats, has_draft=options.draft is not None)
    failed = [output for output in outputs if output.finish_reason == "error"]
    for output in failed:
        typer.echo(in_lines(f"switchrail: {output.prompt!r} failed: {_told(output.error)}"), err=True)
    if failed:
        raise typer.Exit(1)


def _told(error: BaseException | None) -> str:
    return str(error) if isinstance(error, SwitchrailError) else f"{type(error).__name__}: {error}"


@contextmanager
def _named_failures(*, with_traceback: bool) -> Iterator[None]:
    """If a backend's exception ends a step, reports it with the backend's name and failing line."""
    try:
        yield
    except SwitchrailError:
        raise
    except Exception as error:
        notes = getattr(error, "__notes__", ())
        if not notes:
            raise
        if with_traceback:
            typer.echo(in_lines("".join(traceback.format_exception(error))), err=True, nl=False)
        more = "" if with_traceback else "; --traceback shows the traceback"
        what = f"{type(error).__name__}: {error} ({failing_place(error)}{more})"
        typer.echo(in_lines(f"switchrail: {'; '.join(notes)}: {what}"), err=True)
        raise typer.Exit(1) from error


def _check_prompts(
    runtime: Runtime, folder: Path, prompts: Sequence[str], params: SamplingParams, options: EngineOptions
) -> None:
    """Refuses invalid prompts before the engine loads the weights."""
    from switchrail.checks import is_count
    from switchrail.engine.checkpoint import load_tokenizer, read_config

    config, _ = read_config(folder, runtime.family_of)
    longest = options.max_length or config.get("max_position_embeddings")
    tokenizer = load_tokenizer(folder)
    for index, prompt in enumerate(prompts):
        with prompt_named(index, prompts):
            tokens = tokenize(tokenizer, prompt)
            if is_count(longest):  # the engine reports other values as errors
                check_length(len(tokens), params, longest)


def _lines(file: Path) -> list[str]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the prompts in {file} can't be read: {error}", path=str(file)) from error
    return [line for line in lines if line.strip()]


def _routes(plan: RoutePlan) -> list[dict[str, Any]]:
    kinds = [layer.kind for layer in plan.layout.layers]
    return [
        {"layer": layer, "kind": kinds[layer], "op": op, "phase": phase, "backend": name}
        for layer, op, phase, name in plan.table
    ]


def _print_stats(told: Console, stats: Stats, *, has_draft: bool) -> None:
    told.print(
        f"\nprefill {stats.prefill_tokens} tokens, {stats.prefill_tokens_per_s:,.0f} tokens/s; "
        f"decode {stats.decode_tokens} tokens, {stats.decode_tokens_per_s:,.0f} tokens/s",
        highlight=False,
    )
    if has_draft:
        told.print(
            f"drafts: {stats.accepted_tokens} of {stats.drafted_tokens} tokens accepted, "
            f"{stats.accepted_per_verification:.2f} per verification ({stats.verifications})",
            highlight=False,
        )


def _acceptance(stats: Stats) -> dict[str, Any]:
    return {
        "verifications": stats.verifications,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
    }


def _output(output: Output) -> dict[str, Any]:
    return {
        "prompt": output.prompt,
        "prompt_tokens": list(output.prompt_tokens),
        "tokens": list(output.tokens),
        "text": output.text,
        "finish_reason": output.finish_reason,
    }


def _until_interrupted(events: Iterable[Event]) -> Iterator[Event]:
    """Yields the events until Ctrl-C is pressed, and then raises KeyboardInterrupt.

    It is raised between events, because an exception raised inside a callback could be lost. A second Ctrl-C
    raises it immediately.
    """
    heard: list[int] = []

    def hear(number: int, _: object) -> None:
        if heard:
            raise KeyboardInterrupt
        heard.append(number)

    before = signal.signal(signal.SIGINT, hear)
    try:
        for event in events:
            if heard:
                raise KeyboardInterrupt
            yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _speak(out: Console, told: Console, events: Iterable[Event], prompts: Sequence[str]) -> list[Output]:
    """Prints the prompts in order, each followed by its text. The current text is printed as it arrives.

    On a terminal, control characters are escaped; elsewhere the text is unchanged.

    Args:
        out: The console for the generated texts, which are separated by blank lines.
        told: The console for the prompts. Each prompt has its own line unless both consoles are terminals.
        events: The engine's events.
        prompts: The prompts, in the order of their requests' ids.
    """
    outputs: dict[int, Output] = {}
    end = "" if out.is_terminal and told.is_terminal else "\n"
    waiting = [""] * len(prompts)
    begun = current = 0
    try:
        for event in events:
            waiting[event.request.id] += event.text
            if event.finish_reason is not None:
                outputs[event.request.id] = event.request.output
            for number in range(current, len(prompts)):
                if begun == number:
                    if begun:
                        out.out("")
                    _say(told, prompts[number], "bold")
                    told.out("", end=end)
                    begun += 1
                _say(out, waiting[number])
                waiting[number] = ""
                if number not in outputs:
                    break
                out.out("")
                current = number + 1
    except BaseException:
        if begun > current:
            out.out("")  # ends the line, so that the error message begins on its own line
        raise
    return [outputs[i] for i in range(len(prompts))]


def _say(console: Console, text: str, style: str | None = None) -> None:
    if console.is_terminal or console.quiet:
        console.out(escaped(text), end="", style=style, highlight=False)
    else:  # rich would drop some control characters
        console.file.write(text)
        console.file.flush()
