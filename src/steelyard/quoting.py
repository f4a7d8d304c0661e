"""Text from outside as it may be shown: without control characters, and not endless."""

from __future__ import annotations

import re

MOST_QUOTED = 200  # characters of one name, path or value

_SPACES = "\u00a0\u2009\u202f\u3000"  # characters that str.isprintable refuses, and terminals show
_OPENING = r"(?<![^\s(\[{=:,])"  # where a quotation may begin: not at an apostrophe
_MORE = f"{{{MOST_QUOTED + 1},}}"
_LONG = re.compile(rf"""\S{_MORE}|{_OPENING}'[^']{_MORE}'|{_OPENING}"[^"]{_MORE}\"""")
_CUT = "..."


def printable(text: str) -> str:
    """The text with escapes such as ``\\x1b`` for what a terminal would obey, or could not show."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in _SPACES else _escaped(each) for each in text)


def shortened(text: str, most: int = MOST_QUOTED) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - len(_CUT)] + _CUT


def message(text: str) -> str:
    """A line of a message: printable, and with no word or quotation of more than 200 characters."""
    return _LONG.sub(_cut, printable(text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _cut(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] in "'\"" and text[-1] == text[0]:
        return text[0] + shortened(text[1:-1], MOST_QUOTED) + text[0]
    return shortened(text)
