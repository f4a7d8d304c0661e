"""The one way a user's mistake leaves the program."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from reprlib import Repr

from steelyard.quoting import MOST_QUOTED, message, shortened

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = MOST_QUOTED


class UserError(Exception):
    """Something the user can mend: the message says where, what was found and what would be right.

    The command line prints it as it stands and exits with code 2. Several mistakes are a line each. Control characters
    that a name brings along are escaped, and of a long name or value only the beginning is shown.
    """

    def __init__(self, *mistakes: str) -> None:
        super().__init__(*map(message, mistakes))

    def __str__(self) -> str:
        return "\n".join(self.args)


class NoRoom(UserError):
    """A model, with what its engine needs, does not fit the memory of its GPUs."""


@contextmanager
def blaming(where: str) -> Iterator[None]:
    """Put the place a mistake was made (file and key) before whatever message comes from inside."""
    try:
        yield
    except UserError as error:
        raise type(error)(*(f"{where}: {each}" for each in error.args)) from None


def quoted(value: object) -> str:
    """A value that was found in an input, as Python writes it, shortened."""
    return shortened(_SHORT.repr(value))


def shown(path: Path) -> str:
    """A path, shortened."""
    return shortened(str(path))


def nearest(word: str, choices: Iterable[str], most: int = 3) -> list[str]:
    """The choices a mistyped word most likely meant, best first; empty when none is close."""
    return difflib.get_close_matches(word.lower(), list(choices), n=most, cutoff=0.5)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A sentence that offers the nearest choice, or lists them all."""
    options = list(choices)
    close = nearest(word, options)
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}?"
    return "choose one of " + ", ".join(sorted(options))
