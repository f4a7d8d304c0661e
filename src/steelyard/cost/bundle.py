"""Measured profiles as files: one JSON object a line, gzipped.

The first line is ``{"about": {...}}``: GPU, driver, library versions, date. Every other line is one measured point:
``{"point": {"op": "gemm", "m": 64, "n": 4096, "k": 4096}, "us": 11.6, "spread": 0.01, "launch_us": 12.0}``. ``us`` is
the kernels' time inside a CUDA graph, ``launch_us`` (where given) the time with each launched by the host. Points with
``"held_out": true`` are there to tell how well the others foretell them; points with ``"error"`` could not be measured.
``"carried": true`` marks those of another GPU of the kind, at the level of this one (`merge.py` of the profile room).
``"kernel"`` of routed experts names the compiled kernel that an engine runs there: equal names, equal kernel; where it
had not run before, ``"compile_s"`` is how long its first call took, in which it is compiled.
`grid.py` of the profile room lists the families and their dimensions.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Bundle:
    """A GPU's measured operators, by family: each row is the point's dimensions and its microseconds."""

    about: dict[str, Any]
    families: dict[str, list[Row]]
    held_out: dict[str, list[Row]] = field(default_factory=dict)


@cache
def shipped_bundle(gpu: str) -> Bundle | None:
    """The bundle that comes with the package for a GPU of the catalog, if there is one."""
    file = resources.files("steelyard.cost") / "bundles" / f"{gpu}.jsonl.gz"
    if not file.is_file():
        return None
    return read_bundle(gzip.decompress(file.read_bytes()).decode())


def read_bundle(text: str) -> Bundle:
    """A bundle from its lines."""
    about, *lines = json.loads(f"[{','.join(text.splitlines())}]")  # at once is faster than one by one
    families: dict[str, list[Row]] = defaultdict(list)
    held_out: dict[str, list[Row]] = defaultdict(list)
    for line in lines:
        if "error" not in line:
            point = line.pop("point")
            into = held_out if line.pop("held_out", False) else families
            into[point.pop("op")].append({**point, **line})
    return Bundle(about["about"], dict(families), dict(held_out))
