"""A wrong command line as one line: the command, the option or argument, what was found and what would be right.

The classes of the library's errors are known by name: its versions have them in different modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from steelyard.errors import UserError, nearest, quoted

_MISUSE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
_HELP = "NoArgsIsHelpError"  # whose message is the help, which stays as it is
_WRONG = "Input should be "  # as messages about values begin


@contextmanager
def misuse_as_user_error(program: str, context: Any = None) -> Iterator[None]:
    """Around the parsing of a command line, or of what follows a command in it."""
    try:
        yield
    except _MISUSE as error:
        if type(error).__name__ == _HELP:
            raise
        path = _command_path(error, program, context)
        raise UserError(f"{path}: {_told(error)}; see '{path} --help'") from None


def _command_path(error: Any, program: str, context: Any) -> str:
    """The program and its command as they were typed."""
    if error.ctx is not None:
        return str(error.ctx.command_path)
    command = None if context is None else context.invoked_subcommand
    return program if command is None else f"{program} {command}"


def _told(error: Any) -> str:
    match type(error).__name__:
        case "NoSuchOption":
            return f"{error.option_name}: no such option{_suggested(error.option_name, error.possibilities or ())}"
        case "BadOptionUsage":
            what = str(error.message).partition(f"{error.option_name!r} ")[2]
            return f"{error.option_name}: {what.rstrip('.')}"
        case "MissingParameter":
            return f"{_name(error.param)} is missing: {error.param.help.rstrip('.')}"
        case "BadParameter":
            return f"{_name(error.param)}: {_wrong_value(error)}"
    text = str(error.message).rstrip(".")
    return text[:1].lower() + text[1:]


def _suggested(option: str, possible: Any) -> str:
    """The option that was probably meant. All begin with dashes, which makes no two of them alike."""
    close = nearest(option.lstrip("-"), [each.lstrip("-") for each in possible], most=1)
    return f" (did you mean --{close[0]}?)" if close else ""


def _name(parameter: Any) -> str:
    """An option as it is typed, an argument as the help shows it."""
    return str(parameter.opts[0] if parameter.param_type_name == "option" else parameter.name)


def _wrong_value(error: Any) -> str:
    """What a value must be. The library's validator keeps what it found apart from its message."""
    text = str(error.message).rstrip(".")
    if not text.startswith(_WRONG):
        return text
    wanted = text.removeprefix(_WRONG).partition(", unable")[0]
    return f"must be {wanted} (found {quoted(error.__cause__.errors()[0]['input'])})"
