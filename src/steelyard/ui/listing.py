"""Past results: one row for each folder in `runs`, read again only where it has changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from steelyard.errors import UserError
from steelyard.files.finding import is_file
from steelyard.files.folder import SUMMARY
from steelyard.files.jsontext import json_object
from steelyard.live.runs import RUN_FILE
from steelyard.ui.folder import PART, UiFolder, link_in

SEARCH = "search.json"
Row = dict[str, Any]
_MARKS = (RUN_FILE, SEARCH, SUMMARY)  # files that say what a folder is, in the order in which they count


class Listing:
    """The results of a folder. A row is kept as long as the files that it was read from stay as they are."""

    def __init__(self, folder: UiFolder) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[object, ...], Row]] = {}
        self._one_at_a_time = Lock()

    def rows(self) -> list[Row]:
        """A row for each result, by name."""
        with self._one_at_a_time:
            found = {}
            for entry in self._folder.runs():
                stamp = _stamp(Path(entry.path))
                known = self._known.get(entry.name)
                if stamp and (known is None or known[0] != stamp):
                    known = stamp, row_of(Path(entry.path))
                if stamp and known is not None:
                    found[entry.name] = known
            self._known = found
            return [{**row, "name": name, "modified": stamp[0]} for name, (stamp, row) in found.items()]


def kind_of(folder: Path) -> str:
    """``live``, ``search``, ``posttrain`` or ``serving``; ``unknown`` for a folder without a result."""
    return str(row_of(folder)["kind"])


def live_folder(folder: Path) -> Path | None:
    """The folder of a live run: this one, or of a run with two ways of scheduling, that of ours."""
    return next((each for each in (folder, folder / PART) if is_file(each / RUN_FILE)), None)


def _stamp(folder: Path) -> tuple[object, ...]:
    """When the files that make a folder's row were last written; empty if it has none."""
    found: list[object] = []
    for path in (*(folder / name for name in _MARKS), folder / PART / RUN_FILE):
        try:
            stat = os.stat(path, follow_symlinks=False)
        except OSError:
            continue
        found += [stat.st_mtime, stat.st_size, path.name]
    return tuple(found)


def row_of(folder: Path) -> Row:
    """What the list says of a result. A result that cannot be read says why."""
    if link := link_in(folder):
        return {"kind": "unknown", "problem": f"{link} is a link, and links are not followed"}
    try:
        if live_folder(folder) is not None:
            return {"kind": "live"}
        if is_file(folder / SEARCH):
            return _search_row(json_object(folder / SEARCH))
        summary = json_object(folder / SUMMARY)
        return _serving_row(summary) if "ttft" in summary else _posttrain_row(summary)
    except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
        return {"kind": "unknown", "problem": f"cannot be read: {error}"[:300]}


def _serving_row(summary: Mapping[str, Any]) -> Row:
    limits = [bool(each["met"]) for each in summary["slo"].values()]
    return {
        "kind": "serving",
        "scenario": str(summary["name"]),
        "model": str(summary["model"]),
        "gpu": str(summary["gpu"]),
        "gpus": summary["gpus"],
        "requests": summary["requests"],
        "ttft_p95": summary["ttft"]["p95"],
        "tpot_p95": summary["tpot"]["p95"],
        "tokens_per_s": summary["throughput"]["output_tokens_per_s"],
        "usd_per_million": summary["cost"]["usd_per_million_output_tokens"],
        "met": all(limits) if limits else None,
    }


def _posttrain_row(summary: Mapping[str, Any]) -> Row:
    return {
        "kind": "posttrain",
        "scenario": str(summary["name"]),
        "gpus": summary["gpus"],
        "steps": summary["steps"],
        "step_seconds": summary["step_seconds"]["total"],
        "tokens_per_s": summary["tokens_per_second"],
        "usd_per_million": summary["cost"]["usd_per_million_tokens"],
    }


def _search_row(found: Mapping[str, Any]) -> Row:
    best = next((level["choices"][0] for level in found["levels"] if level["choices"]), None)
    row = {"kind": "search", "scenario": str(found["name"]), "candidates": found["candidates"]["considered"]}
    if best is not None:
        row |= {"best": str(best["name"]), "gpus": best["gpus"], "tokens_per_s": best["output_tokens_per_s"]}
    return row
