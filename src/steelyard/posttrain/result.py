"""What a post-training run produced: a summary, its training steps and trajectories, and the roles of its GPUs."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from steelyard.files.finding import is_file
from steelyard.files.folder import SUMMARY, result_folder
from steelyard.files.jsontext import json_object
from steelyard.files.tables import read_columns
from steelyard.files.writing import written_text
from steelyard.lazy import late
from steelyard.posttrain.held import Held
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.plots import PosttrainPlots
from steelyard.posttrain.record import RoleChange, StepRecord
from steelyard.posttrain.step_table import step_table
from steelyard.posttrain.trajectory_table import Column, TrajectoryTable
from steelyard.records.tables import to_arrow, to_pandas, to_polars, write_table, write_tables
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.sim.kept_scenario import write_scenario
from steelyard.sim.result import NotKept

if TYPE_CHECKING:
    import pyarrow

TRAJECTORIES, STEPS = "trajectories.parquet", "steps.parquet"


@dataclass(frozen=True, eq=False, repr=False)
class PosttrainResult:
    """The outcome of one run: a summary, and its training steps and trajectories as columns. Plain data: it can be
    pickled, saved and loaded."""

    scenario: PosttrainScenario
    summary: dict[str, Any]
    records: tuple[StepRecord, ...]
    changes: tuple[RoleChange, ...]  # of GPUs' roles
    held: tuple[Held, ...]
    table: TrajectoryTable

    @classmethod
    def of(cls, scenario: PosttrainScenario, summary: dict[str, Any], loop: Loop) -> PosttrainResult:
        """The result of a loop that has run."""
        record, held = loop.record, tuple(map(Held.of, loop.roles.tenures))
        return cls(scenario, summary, tuple(record.steps), tuple(record.reallocations), held, record.trajectories)

    @classmethod
    def load(cls, folder: str | Path) -> PosttrainResult:
        """Read a folder that `save` or ``steelyard posttrain`` wrote. It has no records of the run, which pages and
        timelines are made of."""
        folder, made = Path(folder), cls.__new__(cls)
        made.__dict__["summary"] = json_object(folder / SUMMARY, "a result folder")
        for name, file in (("trajectories", TRAJECTORIES), ("steps", STEPS)):
            if is_file(folder / file):
                made.__dict__[name] = read_columns(folder / file)
        return made

    def save(self, folder: str | Path) -> None:
        """Write summary.json, scenario.json, trajectories.parquet and steps.parquet. Files of an earlier result are
        replaced."""
        with result_folder(Path(folder)) as stage:
            self.write(stage)

    def write(self, stage: Path) -> None:
        """Write the same files to a private folder. Trajectories are written in parts, since a long run has
        millions."""
        if "scenario" in self.__dict__:
            write_scenario(self.scenario, stage)
        if "table" in self.__dict__:
            write_tables(self.table.parts(), stage / TRAJECTORIES)
        else:
            write_table(self.trajectories, stage / TRAJECTORIES)
        write_table(self.steps, stage / STEPS)
        with written_text(stage / SUMMARY) as text:
            text.write(self.summary_json())

    def summary_json(self) -> str:
        """The text of summary.json."""
        return json.dumps(self.summary, indent=2, allow_nan=False) + "\n"

    @cached_property
    def trajectories(self) -> dict[str, Column]:
        """One row per trajectory that ended or was aborted; ``step`` is -1 for those not trained on."""
        return self.table.columns()

    @cached_property
    def steps(self) -> dict[str, Column]:
        """One row per training step: `step_table` names the columns."""
        return step_table(self.records, self.changes, self.held, self.table.parts(), self.summary)

    def to_arrow(self, table: Literal["trajectories", "steps"] = "trajectories") -> pyarrow.Table:
        """The trajectories, or the training steps, as an Arrow table."""
        return to_arrow(self.trajectories if table == "trajectories" else self.steps)

    def to_pandas(self, table: Literal["trajectories", "steps"] = "trajectories") -> Any:
        """The trajectories, or the training steps, as a pandas frame."""
        return to_pandas(self.trajectories if table == "trajectories" else self.steps)

    def to_polars(self, table: Literal["trajectories", "steps"] = "trajectories") -> Any:
        """The trajectories, or the training steps, as a polars frame."""
        return to_polars(self.trajectories if table == "trajectories" else self.steps)

    @property
    def plot(self) -> PosttrainPlots:
        """Charts of the run, such as ``result.plot.gantt()``."""
        return PosttrainPlots(self)

    def _repr_html_(self) -> str:
        return late("steelyard.report.notebook", "posttrain_html")(self)

    def __repr__(self) -> str:
        got = self.summary
        return f"<PosttrainResult {got['name']}: {got['steps']} steps, {got['tokens_per_second']:,.0f} tokens/s>"

    def __getattr__(self, name: str) -> Any:
        if name in {"trajectories", "steps", *(each.name for each in fields(PosttrainResult))}:
            raise NotKept(f"the result has no {name}: a folder does not hold it; run the scenario again")
        raise AttributeError(name)
