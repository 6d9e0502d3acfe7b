"""The command's entry point: its subcommands, and how errors leave it."""

from __future__ import annotations

import logging
from typing import Any

import typer
from typer.core import TyperGroup

from switchrail.cli.backends import backends
from switchrail.cli.check_backend import check_backend
from switchrail.cli.choices import ListsBackends
from switchrail.cli.doctor import doctor
from switchrail.cli.explain import explain
from switchrail.cli.lock import lock
from switchrail.cli.new_plugin import new_plugin
from switchrail.cli.plugins import plugins
from switchrail.cli.run import run
from switchrail.cli.tune import tune
from switchrail.errors import SwitchrailError

INVALID, INTERRUPTED = 2, 130


class _Commands(TyperGroup):
    """Turns the library's errors into one message, and an interrupt into its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SwitchrailError as error:
            typer.echo(f"switchrail: {'; '.join((str(error), *getattr(error, '__notes__', ())))}", err=True)
            raise typer.Exit(INVALID) from error
        except KeyboardInterrupt as interrupt:
            typer.echo("switchrail: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from interrupt


app = typer.Typer(
    name="switchrail",
    cls=_Commands,
    help="Runs hybrid models, each layer's attention on the backend that its route names.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(cls=ListsBackends)(run)
app.command()(plugins)
app.command()(backends)
app.command(cls=ListsBackends)(explain)
app.command()(lock)
app.command()(new_plugin)
app.command()(doctor)
app.command()(check_backend)
app.command()(tune)


def main() -> None:
    """Runs the command with the process's arguments; what the library logs goes to standard error."""
    log = logging.getLogger("switchrail")
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    app(prog_name="switchrail")
