"""`python -m bench.planner_model`: the planner's makespan model against the rollout simulator, case by case."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.planner import last_end, setup_of
from steelyard.balance.estimate import Blind
from steelyard.balance.placement import Placement
from steelyard.balance.plan import Classes, Measured, makespans
from steelyard.balance.route.rollout import rollout_router
from steelyard.posttrain.planning import replica_model
from steelyard.posttrain.setup import PosttrainSetup

GROUP = 8


@dataclass(frozen=True)
class Case:
    """Trajectories of a preset on replicas of one degree, turns kept where their caches are or not."""

    preset: str
    prompts: int
    tp: int
    replicas: int
    sticky: bool = True

    def simulated(self) -> float:
        """Seconds until the last trajectory has ended, by the simulator."""
        setup = _setup(self.preset, self.prompts)
        placement = Placement(rollout_router("sticky" if self.sticky else "least-outstanding"), Blind())
        return last_end(setup, placement, [self.tp] * self.replicas, setup.tasks.step(0))

    def predicted(self) -> float:
        """The same by the model."""
        setup = _setup(self.preset, self.prompts)
        model = replica_model(setup.kinds[self.tp])
        measured = Measured.of(setup.tasks.step(0), GROUP)
        classes = Classes.of(measured, model.speed.decode[0][1])
        load = np.array([len(measured) / self.replicas])
        return float(makespans(model, classes, load, np.array([0]), np.array([len(classes)]), self.sticky)[0])


@cache
def _setup(preset: str, prompts: int) -> PosttrainSetup:
    return setup_of(preset, prompts=prompts, group=GROUP)


CASES = (
    Case("search", 40, 1, 5),
    Case("search", 40, 1, 10, sticky=False),
    Case("search", 40, 2, 3),
    Case("search", 40, 2, 5, sticky=False),
    Case("search", 40, 4, 2),
    Case("search", 40, 8, 2),
    Case("math", 16, 1, 8),
    Case("math", 16, 1, 2, sticky=False),
    Case("math", 16, 2, 1),
    Case("math", 16, 4, 2, sticky=False),
    Case("math", 16, 8, 1),
    Case("swe", 4, 1, 2),
    Case("swe", 4, 4, 1),
)
OVERLOADED = (Case("search", 40, 2, 1), Case("search", 64, 4, 1), Case("swe", 16, 2, 1))
"""More turns than seats, or more contexts than the cache holds."""


def main() -> None:
    """Print the table."""
    table = Table("trajectories", "replicas", "turns", "simulated", "model", "error", "CPU s")
    for case in (*CASES, *OVERLOADED):
        start = time.process_time()
        truth = case.simulated()
        spent, found = time.process_time() - start, case.predicted()
        kept = "stay" if case.sticky else "go anywhere"
        what = f"{case.preset} x {case.prompts * GROUP}", f"{case.replicas} x TP{case.tp}", kept
        table.add_row(*what, f"{truth:.1f}", f"{found:.1f}", f"{100 * (found / truth - 1):+.1f} %", f"{spent:.1f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
