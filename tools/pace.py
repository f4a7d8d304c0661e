"""How fast and how steady the hosts of captures were: `python tools/pace.py CAPTURE_DIR...`

A step's scheduling is plain Python on one core, does not wait for the GPU, and is linear in the number of requests. So
its time per request compares hosts, which launches do not, since they also depend on the model. Its time relative to
the usual one is the host's pace at that moment. For each run this prints the former (if enough steps show it), the
spread of the latter over half seconds, the spread of kernel-by-kernel launches, and the correlation of both; for all
runs also the correlation of two launches by the time between them.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.cost import HostTerms
from steelyard.files.jsontext import json_lines
from steelyard.validate.calibrate import evidence
from steelyard.validate.crossed import Source, read_sources

Floats = NDArray[np.float64]

_WINDOW = 0.5  # seconds
_FEWEST = 5  # steps of a window
_FEWEST_REQUESTS, _FEWEST_STEPS = 32, 20  # needed for the time per request
_EMPTY_SECONDS = 40e-6  # of scheduling an almost empty step
_STALL = 1.8  # times the median
_APART = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)


class Seen(NamedTuple):
    """A launch that the engine waited for."""

    since: float
    kind: str
    seconds: float
    over: float  # relative to the default terms
    deviation: float  # from the median of its kind, relative to it


def main(folders: list[Path]) -> None:
    """Print the tables."""
    found: dict[str, list[Seen]] = {}
    print(
        "| run | µs a request | windows | pace, 10th to 90th percentile | launches | ms, 10th, 50th, 90th percentile "
        "| over the default | correlation |"
    )
    print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    for source in read_sources(folders, "h200"):
        steps = _decode_steps(source)
        level, pace = _level(steps), _pace(steps)
        launches = _launches(source)
        found[source.name] = launches
        eager = [each for each in launches if each.kind == "eager"]
        both = [(pace[_window(each.since)], each.over) for each in eager if _window(each.since) in pace]
        with_it = f"{np.corrcoef(np.array(both).T)[0, 1]:.2f}" if len(both) > 2 * _FEWEST else "–"
        ms = ", ".join(f"{1e3 * at:.0f}" for at in _spread([each.seconds for each in eager])) if eager else "–"
        over = f"{np.median([each.over for each in eager]):.2f}" if eager else "–"
        low, _, high = _spread(list(pace.values()))
        spread = f"{len(pace)} | {low:.2f} to {high:.2f}"
        print(f"| {source.name} | {level} | {spread} | {len(eager)} | {ms} | {over} | {with_it} |")
    print("\n| seconds apart | pairs | covariance, same kind | other kind |\n| --- | --: | --: | --: |")
    for low, high in zip(_APART, (*_APART[1:], np.inf), strict=True):
        pairs = [_in_common(each, low, high) for each in found.values()]
        same, other = (np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))
        print(f"| {low:g} to {high:g} | {len(same) + len(other)} | {same.mean():.4f} | {other.mean():.4f} |")


def _window(at: float) -> int:
    return int(at / _WINDOW)


def _spread(values: list[float]) -> Floats:
    return np.percentile(values, (10, 50, 90))


class Steps(NamedTuple):
    """A run's steps that only decode."""

    at: Floats
    requests: Floats
    waiting: Floats  # waiting requests
    took: Floats  # seconds of scheduling


def _decode_steps(source: Source) -> Steps:
    rows = [row for _, row in json_lines(source.run.stepped, None) if not row["chunks"]]
    return Steps(*np.array([[row[key] for row in rows] for key in ("t_schedule", "n_decode", "waiting", "schedule_s")]))


def _level(steps: Steps) -> str:
    """Microseconds per request with an empty waiting queue, if enough steps show it."""
    tell = (steps.requests >= _FEWEST_REQUESTS) & (steps.waiting == 0)
    if np.count_nonzero(tell) < _FEWEST_STEPS:
        return "–"
    return f"{1e6 * np.median((steps.took[tell] - _EMPTY_SECONDS) / steps.requests[tell]):.1f}"


def _pace(steps: Steps) -> dict[int, float]:
    """By window, the time of scheduling a decode step relative to the usual one for as many requests."""
    at, requests, _, took = steps
    design = np.column_stack([np.ones_like(requests), requests])
    weights = np.ones_like(took)
    for _ in range(20):  # least absolute deviations, which are robust against stalls
        line = np.linalg.lstsq(design * weights[:, None], took * weights, rcond=None)[0]
        weights = np.maximum(np.abs(took - design @ line), 1e-6) ** -0.5
    windows = np.floor(at / _WINDOW).astype(int)
    ratio = took / (design @ line)
    enough = [window for window in np.unique(windows).tolist() if np.count_nonzero(windows == window) >= _FEWEST]
    return {window: float(np.median(ratio[windows == window])) for window in enough}


def _launches(source: Source) -> list[Seen]:
    """Launches that the engine waited for, without stalls."""
    waits = evidence(source.capture, source.run, source.gpu, HostTerms()).waits
    found = []
    for kind in ("whole", "pieces", "eager"):
        here = [wait for wait, how in waits if how == kind and not wait.kernels]
        usual = float(np.median([wait.seconds / wait.predicted for wait in here])) if here else 1.0
        shares = [(wait, wait.seconds / wait.predicted) for wait in here]
        found += [
            Seen(wait.since, kind, wait.seconds, share, share / usual - 1.0)
            for wait, share in shares
            if share < _STALL * usual
        ]
    return sorted(found)


def _in_common(found: list[Seen], low: float, high: float) -> tuple[list[float], list[float]]:
    """Products of deviations of two launches ``low`` to ``high`` seconds apart: of one kind, and of two."""
    near = [(one, other) for one, other in combinations(found, 2) if low <= other.since - one.since < high]
    same = [one.deviation * other.deviation for one, other in near if one.kind == other.kind]
    return same, [one.deviation * other.deviation for one, other in near if one.kind != other.kind]


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]])
