"""Variables of shell scripts: what a script sets itself is put in where it is used, and nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from steelyard.deploy.imported import Remarks
from steelyard.deploy.words import ShellLine, lines_of
from steelyard.errors import UserError
from steelyard.files.limits import MOST_SCENARIO_BYTES

_SET = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_ALONE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?\}|([A-Za-z_]\w*))")
_INSIDE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^${}]*))?\}|([A-Za-z_]\w*))")
_BEFORE = ("export", "local", "readonly", "declare")
_OPENING = ("if", "case", "for", "while", "until")
_CLOSING = ("fi", "fi;", "esac", "esac;", "done", "done;")
_MOST_DEEP = 8  # of defaults in defaults


def commands_of(text: str, where: str, told: Remarks) -> Iterator[ShellLine]:
    """The commands of a script, with the values of its variables and arrays; others stay as they are written.

    What is set under a condition is left out, with a warning where it is used.
    """
    known = _Known(where, told)
    depth = 0
    array: list[str] | None = None
    for line in lines_of(text, where):
        words = line.words[1:] if line.words[0] in _BEFORE else line.words
        depth += (line.words[0] in _OPENING) - sum(word in _CLOSING for word in line.words)
        first = _SET.fullmatch(words[0]) if words else None
        if array is not None:
            array += _uncommented(line.words)
        elif first is not None and first[2].startswith("("):
            array = [words[0].partition("=")[0], *_uncommented([first[2][1:], *words[1:]])]
        elif first is not None and all(_SET.fullmatch(word) for word in words):
            for word in words:
                name, _, value = word.partition("=")
                known.put(name, [known.inside(value)], depth > 0)
        else:
            yield ShellLine(known.all_of(line.words), line.facts)
        if array is not None and array[-1].endswith(")"):
            array[-1] = array[-1][:-1]
            known.put(array[0], known.all_of([word for word in array[1:] if word]), depth > 0)
            array = None


def _uncommented(words: list[str]) -> list[str]:
    """Words up to a comment."""
    starts = [i for i, word in enumerate(words) if word.startswith("#")]
    return words[: starts[0]] if starts else words


@dataclass
class _Known:
    """Variables that a script has set so far. What they grow to is bounded."""

    where: str
    told: Remarks
    values: dict[str, list[str]] = field(default_factory=dict)
    conditional: set[str] = field(default_factory=set)
    characters: int = 0

    def put(self, name: str, words: list[str], conditional: bool) -> None:
        """Set a variable, or add to it."""
        plain = name.removesuffix("+")
        if conditional:
            self.conditional.add(plain)
        elif name == plain:
            self.values[name] = words
        else:
            self.values.setdefault(plain, []).extend(words)

    def all_of(self, words: list[str]) -> list[str]:
        """Words with variables replaced. A word that is a variable becomes all of its words."""
        found: list[str] = []
        for word in words:
            alone = _ALONE.fullmatch(word)
            values = self._values((alone[1] or alone[2]) if alone else "")
            if values is None:
                found.append(self.inside(word))
            else:
                found += values if len(values) != 1 else values[0].split()
        return found

    def inside(self, text: str) -> str:
        """A word with the variables inside it replaced, innermost first."""
        for _ in range(_MOST_DEEP):
            before, text = text, _INSIDE.sub(self._value, text)
            if text == before:
                break
        return text

    def _value(self, match: re.Match[str]) -> str:
        values = self._values(match[1] or match[3])
        if values is not None and (values != [""] or match[2] is None):
            return " ".join(values)
        return match[0] if match[2] is None else str(match[2])

    def _values(self, name: str) -> list[str] | None:
        if name in self.conditional:
            self.told.warnings.append(f"{name}: what the script sets it to under a condition is not read")
        values = self.values.get(name)
        self.characters += sum(map(len, values or ()))
        if self.characters > 4 * MOST_SCENARIO_BYTES:
            raise UserError(f"{self.where}: its variables make more text than is read; write their values out")
        return values
