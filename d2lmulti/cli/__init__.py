"""The command line: `python -m d2lmulti doctor | train | bench | simulate | ...`.

A command is imported when it is called, from the package that it belongs to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec

import click

from ..errors import BackendNotInstalled, D2LMultiError, InvalidInput
from ..processes.process_info import launched, process_info

# Command -> the module with a `click.Command` of this name.
COMMANDS = {
    "doctor": "d2lmulti.cli.doctor",
    "train": "d2lmulti.cli.train",
    "bench": "benchmarks.command",
    "simulate": "d2lmulti_cluster.commands",
    "plan": "d2lmulti_cluster.commands",
    "validate": "d2lmulti_cluster.commands",
}


class Commands(click.Group):
    """The commands whose packages are installed."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Name the commands that can be imported."""
        return [c for c, home in COMMANDS.items() if find_spec(home.partition(".")[0])]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import a command."""
        if name not in COMMANDS:
            return None
        package = COMMANDS[name].partition(".")[0]
        if find_spec(package) is None:
            raise BackendNotInstalled(
                f"{name} needs the package {package}, which is not installed here; "
                "clone the project and run this in its folder"
            )
        return getattr(import_module(COMMANDS[name]), name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Return 0 (good), 1 (a backend is missing), 2 (bad input), 130 (ended by Ctrl-C) or
    141 (the reader of the output has closed it, as in `| head -1`).
    """
    for number in (0, 1, 2):  # that of a closed stream would go to the next open file
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    words = [*(sys.argv[1:] if argv is None else argv)]
    group = Commands(help="Multi-GPU training from scratch.", no_args_is_help=False)
    try:
        with group.make_context("python -m d2lmulti", words) as context:
            return group.invoke(context) or 0
    except click.exceptions.Exit as end:  # of --help
        return end.exit_code
    except click.ClickException as error:
        message = " ".join(error.format_message().split())
        return _failed(f"error: {message} See --help.", 2)
    except D2LMultiError as error:
        return _failed(f"error: {error}", 2)
    except BrokenPipeError:
        # Python would try once more to write what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return _failed("interrupted", 130)


def _failed(message: str, status: int) -> int:
    """Print why a command failed, and on which rank."""
    rank = ""
    if launched():
        with suppress(InvalidInput):  # which is then the message
            rank = f"rank {process_info().rank}: "
    click.echo(rank + message, err=True)
    return status
