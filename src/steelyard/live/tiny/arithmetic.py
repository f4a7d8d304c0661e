"""The value of an expression of whole numbers, ``+``, ``-``, ``*`` and parentheses."""

from __future__ import annotations

import re

_LONGEST = 64  # characters of an expression; chosen
_PIECES = re.compile(r"[0-9]{1,9}|[-+*()]")


class _NotArithmetic(Exception):
    """A text that is no expression."""


def value(text: str) -> int | None:
    """What an expression comes to; None if it is not one."""
    pieces = _PIECES.findall(text)
    if len(text) > _LONGEST or "".join(pieces) != text:
        return None
    try:
        found, rest = _sum(pieces)
    except _NotArithmetic:
        return None
    return None if rest else found


def _sum(pieces: list[str]) -> tuple[int, list[str]]:
    found, pieces = _product(pieces)
    while pieces and pieces[0] in ("+", "-"):
        term, rest = _product(pieces[1:])
        found, pieces = (found + term if pieces[0] == "+" else found - term), rest
    return found, pieces


def _product(pieces: list[str]) -> tuple[int, list[str]]:
    found, pieces = _factor(pieces)
    while pieces and pieces[0] == "*":
        factor, pieces = _factor(pieces[1:])
        found *= factor
    return found, pieces


def _factor(pieces: list[str]) -> tuple[int, list[str]]:
    match pieces:
        case [digits, *rest] if digits.isdigit():
            return int(digits), rest
        case ["(", *inside]:
            found, pieces = _sum(inside)
            if pieces and pieces[0] == ")":
                return found, pieces[1:]
    raise _NotArithmetic
