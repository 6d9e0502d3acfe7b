"""The command's entry point: its subcommands, and its error messages and exit codes."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from importlib import import_module
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import switchrail
from switchrail.cli.complete import join_words
from switchrail.cli.logs import LOG
from switchrail.cli.output import move_output, others_aside
from switchrail.errors import SwitchrailError
from switchrail.foreign import in_lines
from switchrail.packages import engine_packages

INVALID, INTERRUPTED, UNREAD = 2, 130, 141
"""Exit codes: for an error of the library, for Ctrl-C, and if the reader of the output closed the pipe."""

COMMANDS = (
    "run",
    "plugins",
    "backends",
    "plan",
    "explain",
    "lock",
    "new-plugin",
    "doctor",
    "check-backend",
    "tune",
    "warmup",
)


class _FlagsAreFalse:
    """Makes False the default of flags: to convert None, typer would import pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.default is None:
                param.default = False
        return params


class _Command(_FlagsAreFalse, TyperCommand):
    """A subcommand. Its help loads the plugins, because the help of `--backend` lists their backends."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for parameter in self.params:
            if parameter.name == "backend":
                from switchrail.cli.choices import installed_backends
                from switchrail.cli.flags import BACKEND_HELP

                parameter.help = f"{BACKEND_HELP} {in_lines(installed_backends())}"  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        with others_aside():
            return super().invoke(ctx)


class _Commands(_FlagsAreFalse, TyperGroup):
    """Imports a subcommand's module when it is needed, and prints the library's errors as one message."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        commands: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = commands

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        module = name.replace("-", "_")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name, cls=_Command)(getattr(import_module(f"switchrail.cli.{module}"), module))
        return get_command(single)

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Runs click's `main`. If the reader of the output closed the pipe, exits with `UNREAD`."""
        try:
            return super().main(*arguments, **options)
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):
                raise SystemExit(UNREAD) from None
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            with engine_packages("this command"):
                return super().invoke(ctx)
        except SwitchrailError as error:
            told = "; ".join((str(error), *getattr(error, "__notes__", ())))
            typer.echo(in_lines(f"switchrail: {told}"), err=True)
            raise typer.Exit(INVALID) from error
        except KeyboardInterrupt as interrupt:
            typer.echo("switchrail: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from interrupt


app = typer.Typer(
    name="switchrail",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"switchrail {switchrail.__version__}")
        raise typer.Exit


@app.callback()
def _switchrail(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit."),
    ] = False,
) -> None:
    """Runs hybrid models, with a backend of choice for each layer's attention."""


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return in_lines(super().format(record))


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    print(in_lines("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)


def main() -> None:
    """Runs the command with the process's arguments. The library's log goes to standard error."""
    sys.excepthook = _report
    completes = "_SWITCHRAIL_COMPLETE" in os.environ
    move_output(others=not completes)
    if completes:  # in shell completion, other output would end up in the user's command line
        LOG.addHandler(logging.NullHandler())
        join_words(os.environ)
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(_Lines())
        LOG.addHandler(handler)
        LOG.setLevel(logging.INFO)
        # `run` shows the backends before the texts, which log lines about first calls would interrupt.
        LOG.getChild("dispatch").setLevel(logging.WARNING)
    app(prog_name="switchrail")
