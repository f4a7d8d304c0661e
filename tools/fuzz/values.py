"""Values that programs stumble over."""

from __future__ import annotations

from math import inf, nan
from random import Random
from typing import Any

WHOLE = (0, -1, 1, 2, 3, 5, 7, 2**31, 2**31 - 1, 2**63 - 1, 2**63, 2**64, 10**9, 10**18, 10**30, 10**400, -(10**30))
REAL = (0.0, -0.0, 1e-300, 5e-324, 1e-9, 0.5, 1.0, 1.0000000001, 1e9, 1e18, 1e200, 1e308, -1e308, inf, -inf, nan)
TEXT = (
    "",
    " ",
    "x",
    "null",
    "²",
    "١٢",
    "1e1",
    "0x10",
    "0100",
    "1_0",
    "1e999",
    "--out",
    "../x",
    "a/b",
    "r[/y]",
    "[bold]x[/bold]",
    "[red",
    "[link=file:///x]y[/link]",
    "<script>alert(1)</script>",
    "`x` | *y* | [z](q)",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "a\rb",
    "a\x00b",
    "\x9b31m",
    "a\nb",
    "\u202eevil",
    "\ufeffx",
    "\ud800",
    "naïve-模型",
    "x" * 300,
    "x" * 5000,
    "%s%n{0}{x}",
    "${HOME}",
    "~nosuchuser/x",
    "9" * 400,
    "-" * 1000,
)
OTHER: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": 1},
    {"kind": None},
    {"kind": "x"},
    [{}],
    {"a": {"b": [1]}},
)


def hostile(r: Random) -> Any:
    """Any of them, sometimes nested."""
    pool = r.choice((WHOLE, REAL, TEXT, OTHER))
    value = r.choice(pool)
    nest = r.random()
    if nest < 0.04:
        return [value] * r.choice((1, 2, 50))
    if nest < 0.07:
        return {r.choice(TEXT[2:12]): value}
    if nest < 0.08:
        for _ in range(r.choice((5, 30, 120))):
            value = [value]
    return value


def hostile_number(r: Random) -> Any:
    """Whole or not."""
    return r.choice(r.choice((WHOLE, REAL)))


def hostile_text(r: Random) -> str:
    """As a name or an option."""
    return r.choice(TEXT)
