"""The command line: parse, call, print."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from steelyard.cli.edge import guarded
from steelyard.lazy import lazily

if TYPE_CHECKING:
    from steelyard.cli.commands import COMMANDS, app

__all__ = ["COMMANDS", "app", "main"]

__getattr__ = lazily(__name__, dict.fromkeys(("COMMANDS", "app"), "steelyard.cli.commands"))


def main() -> None:
    """Entry point of the program."""
    sys.exit(guarded(_run, sys.argv[1:]))


def _run(arguments: list[str]) -> None:
    from steelyard.cli.commands import app

    app(arguments, prog_name="steelyard")
