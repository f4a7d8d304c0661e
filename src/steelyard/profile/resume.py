"""A file of measured points that an interrupted run left: which points it has, and what has to be mended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steelyard.cost.bundle_lines import bundle_lines
from steelyard.errors import UserError, quoted
from steelyard.files.finding import is_there
from steelyard.files.reading import read_bytes
from steelyard.files.writing import replacing, write_text

Point = dict[str, Any]

_GZIP = b"\x1f\x8b"


def key_of(point: Point) -> str:
    """A point's identity in the file."""
    return json.dumps(point, sort_keys=True, separators=(",", ":"))


def points_done(out: Path, about: dict[str, Any]) -> set[str]:
    """The points in the file, by their keys. A new file gets a first line about the machine.

    A last line that was only written in part is removed. A file of another GPU is refused.
    """
    if not is_there(out):
        write_text(out, json.dumps({"about": about}) + "\n")
    data = read_bytes(out)
    if data.startswith(_GZIP):
        raise UserError(f"{out}: is gzipped, so nothing can be added to it; unpack it, or give another file")
    whole = data[: data.rfind(b"\n") + 1]
    lines = bundle_lines(out, torn=whole != data)
    where, first = next(lines)
    theirs, ours = quoted(first["about"]["gpu"]), quoted(about["gpu"])
    if theirs != ours:
        raise UserError(f"{where}: about.gpu: a profile of {theirs}, but the GPU is {ours}; give another file")
    found = {key_of(line["point"]) for _, line in lines}
    if whole == data:
        return found
    with replacing(out) as file:
        file.write(whole)
    return points_done(out, about)
