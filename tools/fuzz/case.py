"""One fuzz case: a command line and the files in the folder where it runs. Cases are kept as small JSON files."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_GZIP_LEVEL = 6
_RUN = re.compile(r"(.)\1{999,}", re.DOTALL)


@dataclass(frozen=True)
class Content:
    """What lies at a path: bytes, written ``times`` over (gzipped ones as so many members), or something else.

    ``kind`` is file, folder, link (to ``data`` as a path), fifo, or device (one like /dev/null).
    """

    data: bytes = b""
    kind: str = "file"
    times: int = 1
    gzipped: bool = False

    def put(self, path: Path) -> None:
        """Make it. Devices need privileges: without them a case runs with a file in its place."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.kind == "folder":
            path.mkdir(exist_ok=True)
        elif self.kind == "link":
            path.symlink_to(self.data.decode())
        elif self.kind == "fifo":
            os.mkfifo(path)
        elif self.kind == "device":
            try:
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            except OSError:
                path.touch()
        else:
            with path.open("wb") as file:
                block = gzip.compress(self.data, _GZIP_LEVEL, mtime=0) if self.gzipped else self.data
                for _ in range(self.times):
                    file.write(block)

    def to_json(self) -> Any:
        """Text where it is text, with long runs of one character counted; everything else as a mapping."""
        try:
            data: Any = _counted(self.data.decode())
        except UnicodeDecodeError:
            data = {"base64": base64.b64encode(self.data).decode()}
        if self == Content(self.data):
            return data
        return {"data": data, "kind": self.kind, "times": self.times, "gzipped": self.gzipped}

    @classmethod
    def from_json(cls, found: Any) -> Content:
        """What `to_json` made."""
        if isinstance(found, str):
            return cls(found.encode())
        if "parts" in found:
            return cls("".join(text * times for text, times in found["parts"]).encode())
        if "base64" in found:
            return cls(base64.b64decode(found["base64"]))
        return replace(cls.from_json(found["data"]), kind=found["kind"], times=found["times"], gzipped=found["gzipped"])


def _counted(text: str) -> Any:
    """Text with long runs as [character, how often]."""
    parts: list[tuple[str, int]] = []
    end = 0
    for run in _RUN.finditer(text):
        parts += [(text[end : run.start()], 1), (run[1], len(run[0]))]
        end = run.end()
    return {"parts": [*parts, (text[end:], 1)]} if parts else text


@dataclass(frozen=True)
class Case:
    """A command line and its files. ``label`` says what was attacked: a format, or the options of a command."""

    command: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)
    label: str = "options"
    why: str = ""  # of a kept case: what went wrong before
    code: int | None = None  # of a kept case: its right exit code, where only one is right

    @property
    def name(self) -> str:
        """The command."""
        return self.command[0] if self.command else ""

    def lay_out(self, folder: Path) -> None:
        """Write its files."""
        for name, content in self.files.items():
            content.put(folder / name)

    def to_text(self) -> str:
        """As JSON."""
        data = {
            "why": self.why,
            **({} if self.code is None else {"code": self.code}),
            "label": self.label,
            "command": [each.encode("utf-8", "surrogateescape").decode("latin-1") for each in self.command],
            "files": {name: content.to_json() for name, content in self.files.items()},
        }
        return json.dumps(data, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Case:
        """What `to_text` made."""
        data = json.loads(text)
        command = tuple(each.encode("latin-1").decode("utf-8", "surrogateescape") for each in data["command"])
        files = {name: Content.from_json(content) for name, content in data["files"].items()}
        return cls(command, files, data["label"], data["why"], data.get("code"))
