"""What all targets are made of: arguments, notes, comments, names."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steelyard.quoting import printable, shortened

FACTS = "# steelyard: "  # the comment that tells what a command line has no flag for
_MOST_NAME = 50  # of 63 characters that Kubernetes allows, for what controllers append
_WIDTH = 116


@dataclass(frozen=True)
class Note:
    """What was simulated and the target is not told, or does otherwise."""

    key: str  # of the scenario, such as engine.watermark
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}"


@dataclass(frozen=True)
class Deployment:
    """The files of one target, by name, and what they do not say."""

    target: str
    files: dict[str, str]
    notes: tuple[Note, ...]


@dataclass
class Told:
    """Arguments of one command, and notes on what they cannot say."""

    arguments: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def flag(self, name: str, *values: object) -> None:
        """A flag with its values."""
        self.arguments.append((name, *map(str, values)))

    def switch(self, name: str, on: bool) -> None:
        """A flag that ``--no-`` turns off."""
        self.flag(f"--{name}" if on else f"--no-{name}")

    def document(self, name: str, value: Mapping[str, Any]) -> None:
        """A flag whose value is JSON."""
        self.flag(name, json.dumps(value, separators=(",", ":")))

    def note(self, key: str, text: str) -> None:
        """Something that the flags do not say."""
        self.notes.append(Note(key, text))

    @property
    def words(self) -> list[str]:
        """All arguments, flat."""
        return [word for argument in self.arguments for word in argument]


def command(program: Sequence[str], arguments: Iterable[Sequence[str]], raw: Sequence[str] = ()) -> str:
    """A shell command, one argument a line. Every value is quoted but those in ``raw``, which are ours."""
    lines = [shlex.join(program), *map(shlex.join, arguments), *raw]
    return " \\\n  ".join(lines) + "\n"


def comment(*texts: str) -> str:
    """Text as a comment of a shell script or YAML file: it cannot leave its lines."""
    lines = []
    for text in texts:
        line = ""
        for word in printable(text).split(" "):
            if line and len(line) + len(word) >= _WIDTH:
                lines.append(line)
                line = " " + word
            else:
                line = f"{line} {word}" if line else word
        lines.append(line)
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def heading(first: str, notes: Sequence[Note]) -> str:
    """The comment on top of a file."""
    told = ["", "Simulated, but not said or done by what follows:", *(f"- {note}" for note in notes)] if notes else []
    return comment(first, *told)


def facts(**values: object) -> str:
    """A comment that the reader understands."""
    return FACTS + json.dumps(values) + "\n"


def slug(name: str) -> str:
    """A name that files, hosts and Kubernetes accept."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_MOST_NAME].strip("-")
    return plain if plain[:1].isalpha() else f"x-{plain}".rstrip("-")


def slugs(names: Sequence[str]) -> list[str]:
    """The same for several names. No two are equal."""
    taken: list[str] = []
    for name in names:
        found, number = slug(name), 2
        while found in taken:
            found, number = f"{slug(name)}-{number}", number + 1
        taken.append(found)
    return taken


def brief(value: object) -> str:
    """A value for a message."""
    return shortened(str(value), 80)
