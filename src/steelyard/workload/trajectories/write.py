"""Writes trajectories in our own form (docs/trajectories.md), which the reader restores exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from steelyard.files.writing import replacing_text
from steelyard.records import Trajectory


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """One JSON object per line; unknown values are omitted."""
    with replacing_text(path) as file:
        for each in trajectories:
            row = {name: value for name, value in asdict(each).items() if value is not None and name != "turns"}
            row["turns"] = [
                {name: value for name, value in asdict(turn).items() if value is not None} for turn in each.turns
            ]
            file.write(json.dumps(row) + "\n")
