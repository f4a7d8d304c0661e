"""Results of a comparison in a file, so that nothing is run twice."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from steelyard.errors import UserError, quoted
from steelyard.files.jsontext import json_lines, required
from steelyard.files.lines import LineFile
from steelyard.posttrain.compare_outcomes import JUDGED_BY

NUMBERS = (
    *("tokens_per_second", JUDGED_BY, "samples_per_second", "settled_samples_per_second", "step_seconds"),
    *("first_step_seconds", "rollout_idle", "training_idle", "staleness", "given_up"),
)
"""Figures that every run has."""

_LISTS = {"plans": {"rollout", "training"}, "ways": {"way", "tokens", "fresh", "layout", "refused"}}
_REWARD = {"reward", "seconds", "reached", "usd_per_point", "penalty"}


class CompareResults:
    """Figures by digest of the run, and fixed splits by digest of the search. Each is added to ``results.jsonl`` when
    it is known; refusals are not kept."""

    def __init__(self, folder: Path) -> None:
        path = folder / "results.jsonl"
        self._file = LineFile(path)
        try:
            self._known = dict(_read(row, where) for where, row in json_lines(path))
        except BaseException:
            self._file.close()
            raise

    def get(self, digest: str) -> dict[str, Any] | None:
        """The figures of a run, if they are known."""
        return self._known.get(digest)

    def add(self, digest: str, figures: dict[str, Any]) -> None:
        """Keep the figures of a run."""
        self._known[digest] = figures
        if "refused" not in figures:
            self._file.add(json.dumps({"digest": digest, **figures}))

    def close(self) -> None:
        """Leave the file to others."""
        self._file.close()


def _check_list(found: Any, whole: set[str], where: str, hint: str) -> None:
    rows = found if isinstance(found, list) else []
    if not rows or not all(isinstance(each, dict) and each.keys() >= whole for each in rows):
        raise UserError(f"{where}: must be a list with {', '.join(sorted(whole))} (found {quoted(found)}); {hint}")


def _read(row: dict[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """A line of the file, checked."""
    hint = "delete the file to run everything again"
    digest = required(row, "digest", where)
    figures = {name: value for name, value in row.items() if name != "digest"}
    if not isinstance(digest, str):
        raise UserError(f"{where}: digest: must be text (found {quoted(digest)}); {hint}")
    if "refused" in figures:
        return digest, {"refused": str(figures["refused"])}
    for name, whole in _LISTS.items():
        if name in figures:
            _check_list(figures[name], whole, f"{where}: {name}", hint)
            return digest, figures
    for name in NUMBERS:
        value = required(row, name, where)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"{where}: {name}: must be a number (found {quoted(value)}); {hint}")
    reward = figures.get("time_to_reward")
    if reward is not None and not (isinstance(reward, dict) and reward.keys() >= _REWARD):
        raise UserError(
            f"{where}: time_to_reward: must have {', '.join(sorted(_REWARD))} (found {quoted(reward)}); {hint}"
        )
    return digest, figures
