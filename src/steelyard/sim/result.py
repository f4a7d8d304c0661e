"""What a run produced: a summary, one row per request, one row per engine step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.engine import EngineLog
from steelyard.errors import UserError, quoted
from steelyard.files.finding import is_file
from steelyard.files.folder import SUMMARY, result_folder
from steelyard.files.jsontext import json_object
from steelyard.files.tables import read_columns
from steelyard.files.writing import written_text
from steelyard.lazy import late
from steelyard.records.jsontext import readable
from steelyard.records.tables import to_arrow, to_pandas, to_polars, write_table, write_tables
from steelyard.scenario import Scenario
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.handovers import LinkSpans
from steelyard.sim.kept_scenario import write_scenario
from steelyard.sim.plots import ResultPlots
from steelyard.sim.summary import Summary

if TYPE_CHECKING:
    import pyarrow

Column = NDArray[Any]

Kept = Literal["summary", "requests", "steps"]
EVERYTHING: tuple[Kept, ...] = ("summary", "requests", "steps")
REQUESTS, STEPS = "requests.parquet", "steps.parquet"
_MANY_STEPS = 1 << 21  # whose table is not kept as a whole: it would take 200 MB


class NotKept(UserError, AttributeError):
    """A part of a result that was not asked for, or that a folder does not have."""


@dataclass(eq=False, repr=False)
class Result:
    """The outcome of one run. Plain data: it can be pickled, saved and loaded.

    The table of steps is expanded from the engines' logs on first access. A run may keep only some parts, and a loaded
    result has no scenario; access to a missing part raises `NotKept`.
    """

    scenario: Scenario
    summary: Summary
    requests: dict[str, Column]
    gaps: TokenGaps
    logs: list[EngineLog]
    notes: list[str] = field(default_factory=list)
    links: dict[str, LinkSpans] = field(default_factory=dict)  # when links between pools were busy, by kind

    @classmethod
    def of(cls, **parts: Any) -> Result:
        """A result with only these parts."""
        made = cls.__new__(cls)
        made.__dict__.update(parts)
        return made

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read a result folder that `save` or ``steelyard simulate`` wrote."""
        folder = Path(folder)
        written = json_object(folder / SUMMARY, "a result folder")
        parts: dict[str, Any] = {"notes": written.pop("notes", [])}
        try:
            if not isinstance(parts["notes"], list) or not all(isinstance(each, str) for each in parts["notes"]):
                raise TypeError(f"notes is {quoted(parts['notes'])}")
            parts["summary"] = Summary.from_dict(written)
        except (KeyError, TypeError, AssertionError) as error:
            raise UserError(f"{folder / SUMMARY}: not a summary of this version of steelyard ({error})") from None
        for name, file in (("requests", REQUESTS), ("steps", STEPS)):
            if is_file(folder / file):
                parts[name] = read_columns(folder / file)
        return cls.of(**parts)

    def save(self, folder: str | Path) -> None:
        """Write summary.json, scenario.json, requests.parquet and steps.parquet, as far as they were kept. Files of an
        earlier result are replaced."""
        with result_folder(Path(folder)) as stage:
            if self.has("scenario"):
                write_scenario(self.scenario, stage)
            if self.has("requests"):
                write_table(self.requests, stage / REQUESTS)
            if self.has("steps"):
                write_tables(self.step_tables(), stage / STEPS)
            if self.has("summary"):
                with written_text(stage / SUMMARY) as text:
                    text.write(summary_text(self.summary, self.notes))

    def has(self, part: str) -> bool:
        """Whether the result has a summary, requests or steps."""
        return part in self.__dict__ or (part == "steps" and "logs" in self.__dict__)

    def to_arrow(self, table: Literal["requests", "steps"] = "requests") -> pyarrow.Table:
        """The requests, or the steps, as an Arrow table."""
        return to_arrow(self.requests if table == "requests" else self.steps)

    def to_pandas(self, table: Literal["requests", "steps"] = "requests") -> Any:
        """The requests, or the steps, as a pandas frame."""
        return to_pandas(self.requests if table == "requests" else self.steps)

    def to_polars(self, table: Literal["requests", "steps"] = "requests") -> Any:
        """The requests, or the steps, as a polars frame."""
        return to_polars(self.requests if table == "requests" else self.steps)

    @property
    def plot(self) -> ResultPlots:
        """Charts of the run, such as ``result.plot.ttft()``."""
        return ResultPlots(self)

    def _repr_html_(self) -> str:
        return late("steelyard.report.notebook", "result_html")(self)

    def __repr__(self) -> str:
        if not self.has("summary"):
            return f"<Result with {', '.join(name for name in EVERYTHING if self.has(name)) or 'nothing kept'}>"
        got = self.summary
        ttft = "none" if got.ttft.p95 is None else f"{got.ttft.p95:.3g} s"
        return f"<Result {got.name}: {got.outcomes.finished}/{got.requests} finished, ttft p95 {ttft}>"

    def __getattr__(self, name: str) -> Any:
        if name in _PARTS:
            raise NotKept(f"the result has no {name}: {_PARTS[name]}")
        raise AttributeError(name)

    @cached_property
    def itl(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Gaps between output tokens in seconds, sorted, and the count of each."""
        return self.gaps.rising()

    @cached_property
    def steps(self) -> dict[str, Column]:
        """One row per engine step, replica by replica."""
        tables = list(self._expanded(range(len(self.logs))))
        return {name: np.concatenate([table.pop(name) for table in tables]) for name in list(tables[0])}

    def step_tables(self, replicas: range | None = None) -> Iterator[dict[str, Column]]:
        """The rows of `steps`, of all replicas or only of some, one table for each replica.

        A run may have more steps than fit in memory together with all else; then each table is expanded when its turn
        comes, and not kept.
        """
        if "steps" not in self.__dict__ and sum(log.ran for log in self.logs) > _MANY_STEPS:
            yield from self._expanded(range(len(self.logs)) if replicas is None else replicas)
            return
        steps = self.steps
        last = int(steps["replica"][-1]) + 1 if len(steps["replica"]) else 1
        chosen = range(last) if replicas is None else replicas
        bounds = np.searchsorted(steps["replica"], [*chosen, chosen.stop]).tolist()
        for first, end in pairwise(bounds):
            yield {name: column[first:end] for name, column in steps.items()}

    def _expanded(self, replicas: range) -> Iterator[dict[str, Column]]:
        for replica in replicas:
            table = self.logs[replica].steps()
            yield {"replica": np.full(len(table["end"]), replica), **table}


def summary_text(summary: Summary, notes: Sequence[str]) -> str:
    """The text of summary.json: the summary's figures, then the notes that qualify them."""
    return readable({**summary.to_dict(), "notes": notes})


_AGAIN = "simulate with it among keep, or load a folder that has it"
_PARTS = {
    "scenario": "it was read from a folder; load its scenario.json, or the file that it was run from",
    "summary": _AGAIN,
    "requests": _AGAIN,
    "steps": _AGAIN,
    "logs": f"its steps were not kept, or have been read from a folder; {_AGAIN}",
    "itl": "gaps between tokens come with the summary of a run, and are not saved",
    "links": "times of links come with the steps of a run, and are not saved",
    "gaps": "gaps between tokens come with the summary of a run, and are not saved",
}
