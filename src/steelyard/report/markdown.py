"""Text from outside in Markdown: shown as it is, whatever it has in it."""

from __future__ import annotations

import re

from steelyard.quoting import printable

_SPECIAL = re.compile(r"[\\`*\[\]<>|&~]|(?<!\w)_|_(?!\w)")


def plain(text: str) -> str:
    """Text without any meaning of its own, in a sentence, a heading or a cell."""
    return _SPECIAL.sub(r"\\\g<0>", printable(text))


def code(text: str) -> str:
    """Text as code, between as many backticks as it takes."""
    shown = printable(text)
    runs = [len(run) for run in re.findall("`+", shown)]
    fence = "`" * next(count for count in range(1, len(runs) + 2) if count not in runs)
    return f"{fence} {shown} {fence}" if runs else f"{fence}{shown}{fence}"
