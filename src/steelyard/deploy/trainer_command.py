"""What reading a post-training command gives, whichever trainer it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from steelyard.deploy.imported import ImportOptions, Remarks
from steelyard.errors import UserError
from steelyard.hardware import Gpu
from steelyard.model import catalog_name
from steelyard.scenario.rollouts import trajectories_spec

PRESET = "math"  # the stand-in for trajectories, which no command describes
ROUTER = "least-outstanding"  # the nearest to what trainers do themselves


@dataclass
class TrainerCommand:
    """A trainer's command so far: its GPUs, and a scenario's keys."""

    where: str
    gpu: Gpu
    asked: ImportOptions
    told: Remarks
    mode: str = "split"
    trajectories: dict[str, Any] = field(default_factory=dict)
    budget: dict[str, int] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def given(self, value: int | None, default: int, said: str) -> int:
        """A value of the command, or the trainer's own with a remark."""
        if value is None:
            self.told.defaulted.append(f"{said}: {default}")
            return default
        return value

    def catalogued(self, name: str) -> str:
        """A model's name. Of a path that is not in the catalog the last part counts, if that is."""
        last = name.rstrip("/").rsplit("/", 1)[-1]
        if catalog_name(name) is None and last != name and catalog_name(last) is not None:
            self.told.assumed.append(f"model: {catalog_name(last)}, by the last part of its path")
            return last
        return name

    def batch(self, prompts: int, group: int) -> None:
        """Prompts of a step, and samples of each."""
        for name, count in (("prompts", prompts), ("samples of a prompt", group)):
            if count < 1:
                raise UserError(f"{self.where}: {count} {name} a step; at least one is needed")
        self.trajectories = {"prompts": prompts, "group": group}

    def train_on(self, gpus: int, tp: int, pp: int, cp: int) -> None:
        """The layout of training: what is left of its GPUs are data-parallel ranks."""
        size = tp * pp * cp
        if min(gpus, tp, pp, cp) < 1 or gpus % size:
            raise UserError(
                f"{self.where}: {gpus} GPUs for training do not divide into groups of tp {tp}, pp {pp} and cp {cp}"
            )
        layout = {"tp": tp, "pp": pp, "dp": gpus // size, "cp": cp}
        self.training |= {key: degree for key, degree in layout.items() if degree != 1}

    def buckets(self, gpus: int | None, tp: int) -> list[dict[str, int]]:
        """The rollout engines."""
        if gpus is None:
            if self.asked.replicas is None:
                self.told.assumed.append("rollout: one engine; say otherwise with --replicas")
            return [{"tp": tp, "replicas": self.asked.replicas or 1}]
        if tp < 1 or gpus < tp or gpus % tp:
            raise UserError(f"{self.where}: {gpus} GPUs for rollouts do not divide into engines of {tp}")
        return [{"tp": tp, "replicas": gpus // tp}]

    def only_tensor_parallel(self, pool: dict[str, Any]) -> None:
        """Warn of what rollout engines of scenarios do not have."""
        for key in pool:
            if key != "tp":
                self.told.warnings.append(f"{key} of rollout engines: simulated with tensor parallelism only")

    def scenario(self, model: dict[str, Any], rollout: list[dict[str, int]], engine: dict[str, Any]) -> dict[str, Any]:
        """A scenario's data."""
        self.told.assumed.append(
            f"router: {ROUTER}; trainers place turns by rules of their own, of which it is nearest"
        )
        made: dict[str, Any] = {"name": self.asked.name, "model": model["config"] if len(model) == 1 else model}
        made |= {"gpu": self.gpu.name, "mode": self.mode, "trajectories": self._trajectories()}
        made |= {"rollout": rollout, "training": self.training, "router": ROUTER, "engine": engine, **self.more}
        return {key: value for key, value in made.items() if value != {}}

    def _trajectories(self) -> dict[str, Any]:
        stand_in = trajectories_spec(PRESET).model_dump(include={"budget", "tasks"}, exclude_none=True)
        made: dict[str, Any] = {"preset": PRESET, **self.trajectories}
        if made["prompts"] > stand_in["tasks"]:
            made["tasks"] = made["prompts"]
        if self.budget:
            usual = stand_in["budget"]
            if "context" in self.budget:
                usual.pop("response", None)
            made["budget"] = usual | self.budget
        return made
