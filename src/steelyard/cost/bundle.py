"""Measured profiles as files: one JSON object a line, gzipped.

The first line is ``{"about": {...}}``: GPU, driver, library versions, date. Every other line is one measured point:
``{"point": {"op": "gemm", "m": 64, "n": 4096, "k": 4096}, "us": 11.6, "spread": 0.01, "launch_us": 12.0}``. ``us`` is
the kernels' time inside a CUDA graph, ``launch_us`` (where given) the time with each launched by the host. Points with
``"held_out": true`` only measure how well the others predict them. Points with ``"error"`` could not be measured.
``"carried": true`` marks points of another GPU of the same kind, scaled to this one (`tools/merge_profiles.py`).
``"kernel"`` of routed experts names the compiled kernel that an engine runs there: equal names, equal kernel. Where it
had not run before, ``"compile_s"`` is the time of its first call, which compiles it.
`grid.py` of the profile room lists the families and their dimensions.

The bundle that ships is kept by column beside it (`points.py`; `python -m tools.index_bundle` makes it), so that a run
reads only the operators that its model has.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from steelyard.cost.bundle_lines import bundle_lines
from steelyard.cost.points import PointTable, Row, open_points, save_points

__all__ = ["Bundle", "Row", "index_bundle", "read_bundle", "shipped_bundle"]

FOLDER = Path(__file__).parent / "bundles"
_USED, _HELD_OUT = "points", "held_out"


@dataclass(frozen=True)
class Bundle:
    """A GPU's measured operators, by family: each row is the point's dimensions and its microseconds."""

    about: Mapping[str, Any]
    families: Mapping[str, Sequence[Row]]
    held_out: Mapping[str, Sequence[Row]] = field(default_factory=dict)


@cache
def shipped_bundle(gpu: str) -> Bundle | None:
    """The bundle that comes with the package for a GPU of the catalog, if there is one."""
    file = FOLDER / f"{gpu}.npz"
    if not file.is_file():
        return None
    about, (families, held_out) = open_points(file, _USED, _HELD_OUT)
    return Bundle(json.loads(about), families, held_out)


def read_bundle(path: Path) -> Bundle:
    """A bundle from a file of lines."""
    lines = bundle_lines(path)
    _, first = next(lines)
    families: dict[str, list[Row]] = defaultdict(list)
    held_out: dict[str, list[Row]] = defaultdict(list)
    for _, line in lines:
        if "error" not in line:
            point = line.pop("point")
            into = held_out if line.pop("held_out", False) else families
            into[point.pop("op")].append({**point, **line})
    return Bundle(first["about"], dict(families), dict(held_out))


def index_bundle(bundle: Bundle, path: Path) -> None:
    """Keep a bundle by column."""
    parts = {_USED: bundle.families, _HELD_OUT: bundle.held_out}
    columns = {part: {family: PointTable.of(rows) for family, rows in each.items()} for part, each in parts.items()}
    save_points(path, json.dumps(bundle.about), columns)
