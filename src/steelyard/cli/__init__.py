"""The command line: parse, call, print."""

from __future__ import annotations

import codecs
import os
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
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and sys.executable:
        _start_again_in_utf8()
    sys.exit(guarded(_run, sys.argv[1:]))


def _start_again_in_utf8() -> None:
    """Names of files are UTF-8 where the locale knows no more than ASCII, and what is printed stays ASCII."""
    env = {"PYTHONIOENCODING": "ascii:replace", **os.environ, "PYTHONUTF8": "1"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)


def _run(arguments: list[str]) -> None:
    from steelyard.cli.commands import app

    app(arguments, prog_name="steelyard")
