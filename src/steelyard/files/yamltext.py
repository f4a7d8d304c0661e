"""YAML from outside: mappings, lists, text, numbers, true and false, null. What could be meant otherwise is refused.

It is built from a parser's events, so that its size, nesting and the expansion of its aliases are bounded before it is
there. Refused are tags, keys given twice, and numbers that YAML reads unlike people: ``0100`` (64) and ``1:30`` (90).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from steelyard.errors import UserError, quoted, shown
from steelyard.files.limits import MOST_DEPTH, MOST_DIGITS, MOST_SCENARIO_BYTES, MOST_VALUES
from steelyard.files.nesting import TOO_DEEP, too_deep
from steelyard.files.reading import read_text

_PARSER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader  # the first is ten times as fast
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
    **{f"{sign}.{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)")
_REAL = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+(\.[0-9_]*)?([eE][-+]?[0-9]+)?")
_SIXTIES = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_MERGE = "<<"

Key = str | int


class Document:
    """What a text holds, and the lines of its keys."""

    def __init__(self, text: str, where: str, lined: bool = True) -> None:
        builder = _Builder(where, lined)
        self.data = builder.document(text)
        self._lines = builder.lines

    def line_of(self, path: tuple[Key, ...]) -> int | None:
        """The line of a key path, or of the longest part of it that exists."""
        line, here = None, self.data
        for part in path:
            lines = self._lines.get(id(here), {})
            key = str(part) if isinstance(here, dict) else part
            if key not in lines:
                break
            line, here = lines[key], here[key]
        return line


def read_yaml(path: Path, wanted: str = "") -> Any:
    """What a file holds."""
    return Document(read_text(path, MOST_SCENARIO_BYTES, wanted), shown(path)).data


def parse_yaml(text: str, where: str) -> Any:
    """What a text of a few words holds. Errors about it need no line."""
    return Document(text, where, lined=False).data


class _Builder:
    """Makes data of events. Each mapping and list has the lines of its entries in ``lines``, by its identity."""

    def __init__(self, where: str, lined: bool) -> None:
        self._where = where
        self._lined = lined
        self._events: Iterator[Any] = iter(())
        self._values = 0
        self._anchors: dict[str, tuple[Any, int]] = {}  # with the number of values
        self.lines: dict[int, dict[Key, int]] = {}

    def document(self, text: str) -> Any:
        try:
            self._events = yaml.parse(text, Loader=_PARSER)
            next(self._events)  # the stream's start
            if isinstance(next(self._events), yaml.StreamEndEvent):
                return None
            value = self._value(next(self._events), 0)
            next(self._events)  # the document's end
            after = next(self._events)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise UserError(f"{self._place(mark)}: not valid YAML: {error.problem}") from None
        except (yaml.YAMLError, UnicodeError) as error:  # characters that YAML does not have
            raise UserError(f"{self._where}: not valid YAML: {' '.join(str(error).split())}") from None
        if not isinstance(after, yaml.StreamEndEvent):
            raise self._wrong(after, "a second document; give one")
        return value

    def _value(self, event: Any, depth: int) -> Any:
        before = self._values
        self._count(event, 1)
        if isinstance(event, yaml.AliasEvent):
            return self._again(event, depth)
        if event.tag is not None:
            raise self._wrong(event, f"a tag, {quoted(event.tag)}; write the value without it, and text in quotes")
        if isinstance(event, yaml.ScalarEvent):
            value = self._plain(event) if event.implicit[0] else event.value
        elif depth == MOST_DEPTH:
            raise self._wrong(event, TOO_DEEP)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._list(depth)
        else:
            value = self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._values - before
        return value

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        lines = self.lines[id(found)] = {}
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            lines[len(found)] = event.start_mark.line + 1
            found.append(self._value(event, depth + 1))
        return found

    def _mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        lines = self.lines[id(found)] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key, line = self._key(event), event.start_mark.line + 1
            if key in lines:
                raise self._wrong(event, f"key {quoted(key)} is given twice, first on line {lines[key]}")
            lines[key] = line
            value_event = next(self._events)
            value = self._value(value_event, depth + 1)
            if key == _MERGE and event.implicit[0]:
                merged = self._merged(value, value_event)
            else:
                found[key] = value
        for other in merged:
            for key, value in other.items():
                found.setdefault(key, value)
        return found

    def _key(self, event: Any) -> str:
        """A key as it is written: YAML would make a truth of ``on``, and a number of ``1``."""
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
            raise self._wrong(event, "a key that is no plain text")
        self._count(event, 1)
        return str(event.value)

    def _merged(self, value: Any, event: Any) -> list[dict[str, Any]]:
        mappings = value if isinstance(value, list) else [value]
        if not all(isinstance(each, dict) for each in mappings):
            raise self._wrong(event, f"{_MERGE} takes a mapping, or a list of mappings (found {quoted(value)})")
        return mappings

    def _again(self, event: Any, depth: int) -> Any:
        """A copy of what an alias stands for: a change of one must not change the other."""
        if event.anchor not in self._anchors:
            raise self._wrong(event, f"alias *{event.anchor} stands for nothing that is complete before it")
        value, values = self._anchors[event.anchor]
        self._count(event, values)
        if too_deep(value, MOST_DEPTH - depth):
            raise self._wrong(event, TOO_DEEP)
        return copy.deepcopy(value)

    def _plain(self, event: Any) -> Any:
        """The value of text without quotes."""
        text: str = event.value
        if text in _WORDS:
            return _WORDS[text]
        if text[0] not in "+-.0123456789":
            return text
        if _LEADING_ZERO.fullmatch(text):
            right = text.lstrip("+-").lstrip("0_") or "0"
            raise self._wrong(event, f"{quoted(text)} begins with 0, as octal numbers do; write {right}, or quote it")
        if _SIXTIES.fullmatch(text):
            raise self._wrong(event, f"{quoted(text)} is a number in sixties to YAML; write seconds, or quote it")
        if _WHOLE.fullmatch(text):
            if len(text) > MOST_DIGITS:
                raise self._wrong(event, f"a number of {len(text):,} digits; {MOST_DIGITS} are the most")
            return int(text.replace("_", ""), 0)
        if _REAL.fullmatch(text):
            return float(text.replace("_", ""))
        return text

    def _count(self, event: Any, values: int) -> None:
        self._values += values
        if self._values > MOST_VALUES:
            raise self._wrong(event, f"more than {MOST_VALUES:,} values, aliases counted as often as they are used")

    def _wrong(self, event: Any, what: str) -> UserError:
        return UserError(f"{self._place(event.start_mark)}: {what}")

    def _place(self, mark: Any) -> str:
        return f"{self._where}:{mark.line + 1}" if self._lined and mark is not None else self._where
