"""What the page shows of one result: sentences, figures, and the data of its charts."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.files.finding import is_file
from steelyard.files.folder import RESULT_FILES, SUMMARY
from steelyard.files.jsontext import json_object
from steelyard.files.reading import read_text
from steelyard.posttrain.result import PosttrainResult
from steelyard.report.verdict import bottleneck_line, fleet_line, limits, outcome, slo_line, steady_line
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.kept_scenario import SCENARIO
from steelyard.sim.result import Result
from steelyard.ui.figures import chart_data
from steelyard.ui.listing import SEARCH, kind_of

_SEARCH_FILES = ("search.html", SEARCH, "journal.jsonl")
_MOST_KEPT = 16  # results whose figures are kept; chosen
_MOST_STEPS = 2000  # of a post-training run that are drawn; chosen
_STEP_COLUMNS = (
    *("step", "begun", "seconds", "waiting", "handing_over", "training", "sync", "rollout_from", "rollout_until"),
    *("train_begun", "trained", "synced", "samples", "tokens", "staleness_mean", "rollout_gpus", "training_gpus"),
    *("rollout_gpu_seconds", "rollout_busy_gpu_seconds", "training_gpu_seconds", "training_busy_gpu_seconds"),
    *("usd", "reward", "change"),
)


class Results:
    """The data of results' pages, kept as long as their files stay as they are."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, tuple[int, dict[str, Any]]] = OrderedDict()
        self._one_at_a_time = Lock()

    def page_of(self, folder: Path) -> dict[str, Any]:
        """What is shown of a result."""
        kind = kind_of(folder)
        if kind == "unknown":
            raise UserError(f"{folder.name}: has no result that can be read")
        if kind == "live":
            return {"kind": kind, "files": files_of(folder)}
        stamp = os.stat(folder / (SEARCH if kind == "search" else SUMMARY)).st_mtime_ns
        with self._one_at_a_time:
            known = self._known.get(folder)
            if known is None or known[0] != stamp:
                known = stamp, {"kind": kind, **_PAGES[kind](folder)}
                self._known[folder] = known
                while len(self._known) > _MOST_KEPT:
                    self._known.popitem(last=False)
            self._known.move_to_end(folder)
        return {**known[1], "files": files_of(folder)}


def files_of(folder: Path) -> list[str]:
    """Files of a result that can be fetched."""
    return [name for name in (*RESULT_FILES, *_SEARCH_FILES) if is_file(folder / name)]


def scenario_text(folder: Path) -> str:
    """The scenario of a result, to copy or edit."""
    return read_text(folder / SCENARIO) if is_file(folder / SCENARIO) else ""


def serving_page(folder: Path) -> dict[str, Any]:
    """A serving run: the verdict, what binds, figures and charts."""
    result = Result.load(folder)
    summary = result.summary
    found = limits(summary)
    page: dict[str, Any] = {
        "title": summary.name,
        "fleet": fleet_line(summary),
        "verdict": slo_line(found) if found else "",
        "met": all(each.met for each in found) if found else None,
        "outcome": outcome(summary),
        "steady": steady_line(summary),
        "binds": bottleneck_line(summary),
        "limits": [{"label": each.label, "finding": each.finding, "met": each.met} for each in found],
        "summary": json_object(folder / SUMMARY),
        "scenario": scenario_text(folder),
    }
    if result.has("requests") and result.has("steps"):
        result.gaps = TokenGaps(())  # a folder does not hold them
        page["charts"] = chart_data(_with_scenario(result, folder))
    return page


def _with_scenario(result: Result, folder: Path) -> Result:
    """The result with its scenario where that can be read: faults are drawn where it says they are."""
    from steelyard.sim.kept_scenario import read_scenario

    result.scenario = read_scenario(folder)
    return result


def posttrain_page(folder: Path) -> dict[str, Any]:
    """A post-training run: its summary, and its steps as columns."""
    result = PosttrainResult.load(folder)
    steps = {name: result.steps[name] for name in _STEP_COLUMNS if name in result.steps}
    return {
        "title": str(result.summary["name"]),
        "summary": result.summary,
        "steps": {name: _plain(column[:_MOST_STEPS]) for name, column in steps.items()},
        "scenario": scenario_text(folder),
    }


def _plain(column: np.ndarray) -> list[Any]:
    """A column for JSON: what is not finite is null."""
    if column.dtype.kind == "f":
        return [None if not np.isfinite(each) else each for each in column.tolist()]
    return list(column.tolist())


def search_page(folder: Path) -> dict[str, Any]:
    """A search: its figures."""
    found = json_object(folder / SEARCH)
    return {"title": str(found["name"]), "search": found, "scenario": scenario_text(folder)}


_PAGES = {"serving": serving_page, "posttrain": posttrain_page, "search": search_page}
