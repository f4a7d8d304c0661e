"""Command lines, read without running them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from steelyard.deploy.parts import FACTS, brief
from steelyard.errors import UserError
from steelyard.files.jsontext import parse_json

_ENDS = ("&", "&&", "||", "|", ";", ">", ">>", "<", "2>&1")
_MOST_LINES = 200  # of one quoted text
_PASSED_ON = ("$@", "${MODEL_ARGS[@]}")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True)
class ShellLine:
    """One command, and what the comment before it says."""

    words: list[str]
    facts: dict[str, Any]


def lines_of(text: str, where: str) -> Iterator[ShellLine]:
    """The commands of a script."""
    known: dict[str, Any] = {}
    rows, at = text.replace("\\\n", " ").split("\n"), 0
    while at < len(rows):
        row, at = rows[at], at + 1
        if row.startswith(FACTS):
            known = _facts(row.removeprefix(FACTS), where)
        if row.lstrip().startswith("#"):
            continue
        words = _split(row)
        extra = at
        while words is None and extra < min(len(rows), at + _MOST_LINES):
            extra += 1
            words = _split("\n".join([row, *rows[at:extra]]))
        if words is None:
            raise UserError(f"{where}: {brief(row.strip())!r}: has a quotation mark without its partner")
        at = extra
        if words:
            yield ShellLine(words, known)
            known = {}


def _split(text: str) -> list[str] | None:
    try:
        return shlex.split(text)
    except ValueError:
        return None


def _facts(text: str, where: str) -> dict[str, Any]:
    value = parse_json(text, f"{where}: {FACTS.strip()}")
    return value if isinstance(value, dict) else {}


def after(words: Sequence[str], *programs: tuple[str, ...]) -> list[str] | None:
    """What follows the first of some programs in a command, up to the next one; None if none is in it."""
    for i in range(len(words)):
        for program in programs:
            named = [words[i].rsplit("/", 1)[-1], *words[i + 1 : i + len(program)]]
            if tuple(named) == program:
                rest = list(words[i + len(program) :])
                ends = [k for k, word in enumerate(rest) if word in _ENDS]
                return [word for word in rest[: ends[0] if ends else None] if word not in _PASSED_ON]
    return None


@dataclass
class Flags:
    """Flags of a command with their values. Each is taken once; those that nobody takes are left over."""

    where: str
    found: dict[str, list[str]] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, words: Sequence[str], where: str, switches: frozenset[str], short: dict[str, str]) -> Flags:
        """Flags with dashes or underscores, ``--flag value`` or ``--flag=value``; ``switches`` have no value."""
        flags = cls(where)
        current: list[str] | None = None
        for word in words:
            if word.startswith("-") and not _NUMBER.fullmatch(word) and len(word) > 1:
                name, equals, value = word.partition("=")
                name = name.replace("_", "-") if name.startswith("--") else name
                name = short.get(name, name)
                name, dot, _ = name.partition(".")
                if dot:
                    raise UserError(f"{where}: {brief(word)}: dotted keys are not read; give {name} as JSON")
                current = flags.found.setdefault(name, [])
                current.clear()
                if equals:
                    current.append(value)
                if equals or name in switches:
                    current = None
            elif current is not None:
                current.append(word)
            else:
                flags.positional.append(word)
        return flags

    def text(self, name: str, *choices: str) -> str | None:
        """The single value of a flag."""
        values = self.found.pop(name, None)
        if values is None:
            return None
        if len(values) != 1:
            raise UserError(f"{self.where}: {name}: needs one value, found {brief(' '.join(values)) or 'none'}")
        if choices and values[0] not in choices:
            raise UserError(f"{self.where}: {name}: {brief(values[0])!r} is not one of {', '.join(choices)}")
        return values[0]

    def whole(self, name: str) -> int | None:
        """The same for a whole number."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"-?\d{1,18}", text):
            raise UserError(f"{self.where}: {name}: {brief(text)!r} is not a whole number")
        return int(text)

    def number(self, name: str) -> float | None:
        """The same for any number."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"-?(\d{1,18}(\.\d{0,30})?|\.\d{1,30})([eE][-+]?\d{1,3})?", text):
            raise UserError(f"{self.where}: {name}: {brief(text)!r} is not a number")
        return float(text)

    def switch(self, name: str) -> bool | None:
        """Whether ``--name`` or ``--no-name`` is there."""
        on, off = self.found.pop(f"--{name}", None), self.found.pop(f"--no-{name}", None)
        for values in (on, off):
            if values:
                raise UserError(f"{self.where}: --{name}: takes no value, found {brief(' '.join(values))!r}")
        return True if on is not None else False if off is not None else None

    def wholes(self, name: str) -> list[int] | None:
        """A list of whole numbers, separated by spaces or commas."""
        values = self.found.pop(name, None)
        if values is None:
            return None
        words = [word for value in values for word in value.strip("[]").replace(",", " ").split()]
        if not all(re.fullmatch(r"\d{1,9}", word) for word in words):
            raise UserError(f"{self.where}: {name}: {brief(' '.join(values))!r} is not a list of whole numbers")
        return [int(word) for word in words]

    def document(self, name: str) -> dict[str, Any] | None:
        """A JSON object."""
        text = self.text(name)
        if text is None:
            return None
        value = parse_json(text, f"{self.where}: {name}")
        if not isinstance(value, dict):
            raise UserError(f"{self.where}: {name}: {brief(text)!r} is not a JSON object")
        return value

    def left(self) -> list[tuple[str, list[str]]]:
        """Flags that nobody took."""
        return list(self.found.items())
