"""Adds a second GPU's matrices to a profile: ``python -m tools.merge_profiles FIRST SECOND OUT``.

Two GPUs of the same kind run the same kernels, but each runs some matrices a few percent faster than the other. So the
second's points are scaled to the level of the first, by the ratio of both at nearby rows of the same shape. The first's
points stay as they are. Only the first's points are held out, so that they also tell how well the scaling works.
"""

from __future__ import annotations

import gzip
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steelyard.errors import UserError
from steelyard.files.reading import read_text

Line = dict[str, Any]
Place = tuple[int, int, int]  # outputs, inputs, rows
Lines = dict[Place, Line]

_NEAR = 5  # nearby rows whose ratio scales a point; chosen, see docs/profiles.md for three to nine


def merged(first: Lines, second: Lines) -> Iterator[Line]:
    """The first's points and, scaled to its level, those that it lacks; by shape and rows."""
    levels = _levels(first, second)
    for place in sorted({*first, *second}):
        if place in first:
            yield first[place]
        elif place[:2] in levels and not second[place].get("held_out"):
            line = second[place]
            yield {**line, "us": round(line["us"] * _level(levels[place[:2]], place[2]), 4), "carried": True}


def _levels(first: Lines, second: Lines) -> dict[tuple[int, int], list[tuple[int, float]]]:
    """Rows, and the ratio of the first's to the second's time there, by shape; held-out points are not used."""
    found = defaultdict(list)
    for n, k, m in sorted({*first} & {*second}):
        ours, theirs = first[n, k, m], second[n, k, m]
        if not ours.get("held_out") and not theirs.get("held_out"):
            found[n, k].append((m, ours["us"] / theirs["us"]))
    return found


def _level(levels: list[tuple[int, float]], rows: int) -> float:
    near = sorted(levels, key=lambda each: abs(math.log(each[0] / rows)))[:_NEAR]
    return statistics.median(level for _, level in near)


def _split(text: str) -> tuple[Line, list[str], Lines]:
    """The description of a file, its lines of other operators, and those of 16-bit matrices."""
    about, *lines = text.splitlines()
    others: list[str] = []
    matrices: Lines = {}
    for each in lines:
        line = json.loads(each)
        point = line["point"]
        if point["op"] == "gemm" and "error" not in line:
            matrices[point["n"], point["k"], point["m"]] = line
        else:
            others.append(each)
    return json.loads(about)["about"], others, matrices


def main(first: Path, second: Path, out: Path) -> None:
    """Write the first profile with the second's matrices added."""
    about, others, ours = _split(read_text(first))
    also, _, theirs = _split(read_text(second))
    for key in ("gpu", "torch", "cuda"):
        if about[key] != also[key]:
            raise UserError(f"{second}: of {key} {also[key]}, but {first} of {about[key]}")
    lines = [json.dumps(line, separators=(",", ":")) for line in merged(ours, theirs)]
    head = json.dumps(
        {"about": {**about, "gemm": f"cuBLAS of torch {about['torch']}; some rows carried over from a second GPU"}}
    )
    out.write_bytes(gzip.compress("\n".join([head, *others, *lines, ""]).encode(), mtime=0))


if __name__ == "__main__":
    main(*(Path(each) for each in sys.argv[1:4]))
