"""How quick the core was that an engine's process ran on, by the time its scheduler took: one line a run of a capture.

    python tools/pace.py CAPTURE_DIR...

The scheduler is Python and waits for nobody, so that its time per request tells cores apart where launches, which also
differ by model, do not.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from statistics import median

_FEWEST_REQUESTS, _FEWEST_STEPS = 32, 20
_EMPTY_SECONDS = 40e-6  # of a schedule with next to nothing in it


def pace(steps: Path) -> float | None:
    """Microseconds a request in decode-only steps with nobody waiting; None where there are too few."""
    with gzip.open(steps, "rt") as file:
        rows = [json.loads(line) for line in file]
    found = [
        (row["schedule_s"] - _EMPTY_SECONDS) / row["n_decode"] * 1e6
        for row in rows
        if not row["chunks"] and not row["waiting"] and row["n_decode"] >= _FEWEST_REQUESTS
    ]
    return median(found) if len(found) >= _FEWEST_STEPS else None


def main(folders: list[str]) -> None:
    """Print the pace of every run that shows it."""
    for steps in sorted(path for folder in folders for path in Path(folder).glob("*.steps.jsonl.gz")):
        found = pace(steps)
        if found is not None:
            print(f"{steps.parent.name}/{steps.name.partition('.')[0]}: {found:.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
