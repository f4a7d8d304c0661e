"""What a post-training run produced: a summary, its training steps and trajectories, and the roles of its GPUs."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from steelyard.files.finding import is_file
from steelyard.files.folder import SUMMARY, result_folder
from steelyard.files.jsontext import json_object
from steelyard.files.tables import read_columns
from steelyard.files.writing import written_text
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.record import StepRecord
from steelyard.posttrain.role_figures import Floats
from steelyard.posttrain.roles import Role
from steelyard.posttrain.trajectory_table import Column, TrajectoryTable
from steelyard.records.tables import to_arrow, to_pandas, write_table
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.sim.result import NotKept

if TYPE_CHECKING:
    import pyarrow

TRAJECTORIES, STEPS = "trajectories.parquet", "steps.parquet"
_NUMBERS = tuple(each.name for each in fields(StepRecord) if each.type in ("int", "float"))


@dataclass(frozen=True)
class Held:
    """GPUs that had one role for some time, and, for rollout, when they were busy."""

    role: Role
    gpus: int
    since: float
    until: float
    busy_from: Floats
    busy_until: Floats


@dataclass(frozen=True, eq=False, repr=False)
class PosttrainResult:
    """The outcome of one run. Plain data: it can be pickled, saved and loaded."""

    scenario: PosttrainScenario
    summary: dict[str, Any]
    steps: tuple[StepRecord, ...]
    held: tuple[Held, ...]
    table: TrajectoryTable

    @classmethod
    def of(cls, scenario: PosttrainScenario, summary: dict[str, Any], loop: Loop) -> PosttrainResult:
        """The result of a loop that has run."""
        record = loop.record
        held = []
        for each in loop.roles.tenures:
            busy = (np.empty(0), np.empty(0)) if each.log is None else each.log.busy()
            held.append(Held(each.role, len(each.gpus), each.since, each.until, *busy))
        return cls(scenario, summary, tuple(record.steps), tuple(held), record.trajectories)

    @classmethod
    def load(cls, folder: str | Path) -> PosttrainResult:
        """Read a folder that `save` wrote. Of a folder by ``steelyard posttrain``, only the summary."""
        folder, made = Path(folder), cls.__new__(cls)
        made.__dict__["summary"] = json_object(folder / SUMMARY, "a result folder")
        for name, file in (("trajectories", TRAJECTORIES), ("step_table", STEPS)):
            if is_file(folder / file):
                made.__dict__[name] = read_columns(folder / file)
        return made

    def save(self, folder: str | Path) -> None:
        """Write summary.json, trajectories.parquet and steps.parquet. Files of an earlier result are replaced."""
        with result_folder(Path(folder)) as stage:
            write_table(self.trajectories, stage / TRAJECTORIES)
            write_table(self.step_table, stage / STEPS)
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
    def step_table(self) -> dict[str, Column]:
        """One row per training step."""
        return {name: np.array([getattr(step, name) for step in self.steps]) for name in _NUMBERS}

    def to_arrow(self, table: Literal["trajectories", "steps"] = "trajectories") -> pyarrow.Table:
        """The trajectories, or the training steps, as an Arrow table."""
        return to_arrow(self.trajectories if table == "trajectories" else self.step_table)

    def to_pandas(self, table: Literal["trajectories", "steps"] = "trajectories") -> Any:
        """The trajectories, or the training steps, as a pandas frame."""
        return to_pandas(self.trajectories if table == "trajectories" else self.step_table)

    def __repr__(self) -> str:
        got = self.summary
        return f"<PosttrainResult {got['name']}: {got['steps']} steps, {got['tokens_per_second']:,.0f} tokens/s>"

    def __getattr__(self, name: str) -> Any:
        if name in {"trajectories", *(each.name for each in fields(PosttrainResult))}:
            raise NotKept(f"the result has no {name}: a folder does not hold it; run the scenario again")
        raise AttributeError(name)
