"""Hydra overrides, ``key=value``, read without running Hydra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from steelyard.deploy.parts import brief
from steelyard.errors import UserError
from steelyard.files.jsontext import parse_json
from steelyard.files.limits import MOST_DEPTH
from steelyard.files.nesting import TOO_DEEP

_KEY = re.compile(r"(?:\+{0,2})([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_NUMBER = re.compile(r"-?(\d{1,18}(\.\d{0,30})?|\.\d{1,30})([eE][-+]?\d{1,3})?")
_CONFIG = ("--config-name", "-cn")


@dataclass
class Overrides:
    """Values by key, as written. Each is taken once; those that nobody takes are left over."""

    where: str
    config: str | None = None
    found: dict[str, str] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, words: Sequence[str], where: str) -> Overrides:
        """The overrides of a command. Of a key that is given twice the last counts, as with Hydra."""
        made = cls(where)
        rest = iter(words)
        for word in rest:
            name, equals, value = word.partition("=")
            match = _KEY.fullmatch(word)
            if name in _CONFIG:
                made.config = value if equals else next(rest, "")
            elif match is not None:
                made.found[match[1]] = match[2]
            else:
                made.other.append(word)
        return made

    def text(self, key: str) -> str | None:
        """The text of a key; None if it is not there or null."""
        value = self.found.pop(key, None)
        return None if value is None or value in ("null", "") else _unquoted(value)

    def whole(self, key: str) -> int | None:
        """The same for a whole number."""
        text = self.text(key)
        if text is None:
            return None
        if not re.fullmatch(r"-?\d{1,18}", text):
            raise self._wrong(key, text, "a whole number")
        return int(text)

    def number(self, key: str) -> float | None:
        """The same for any number."""
        text = self.text(key)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text):
            raise self._wrong(key, text, "a number")
        return float(text)

    def switch(self, key: str) -> bool | None:
        """The same for true or false."""
        text = self.text(key)
        if text is None:
            return None
        if text.lower() not in ("true", "false"):
            raise self._wrong(key, text, "true or false")
        return text.lower() == "true"

    def values(self, key: str) -> list[Any] | None:
        """The same for a list."""
        text = self.text(key)
        if text is None:
            return None
        value = parse_json(text, f"{self.where}: {key}") if text.startswith("[") else None
        if not isinstance(value, list):
            raise self._wrong(key, text, "a list")
        return value

    def below(self, prefix: str) -> dict[str, Any]:
        """All values below a key, nested as their names are."""
        tree: dict[str, Any] = {}
        for key in [each for each in self.found if each.startswith(f"{prefix}.")]:
            *path, last = key.removeprefix(f"{prefix}.").split(".")
            if len(path) > MOST_DEPTH:
                raise UserError(f"{self.where}: {brief(key)}: {TOO_DEEP}")
            place = tree
            for name in path:
                place = place.setdefault(name, {})
                if not isinstance(place, dict):
                    raise UserError(f"{self.where}: {key}: {name} has a value of its own; give one of the two")
            place[last] = self._plain(key)
        return tree

    def _plain(self, key: str) -> Any:
        """A value in its own type."""
        text = self.found.pop(key)
        if text[:1] in ("[", "{"):
            return parse_json(text, f"{self.where}: {key}")
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        if text == "null":
            return None
        if _NUMBER.fullmatch(text):
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        return _unquoted(text)

    def _wrong(self, key: str, text: str, wanted: str) -> UserError:
        hint = "; write the value of the expression" if "$" in text else ""
        return UserError(f"{self.where}: {key}: {brief(text)!r} is not {wanted}{hint}")


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("\\'", "'").replace("\\\\", "\\")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return text
