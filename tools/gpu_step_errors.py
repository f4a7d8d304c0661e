"""GPU times of a real engine's steps against the prediction: `python tools/gpu_step_errors.py SCENARIO STEPS.jsonl.gz`

Only steps that did not wait for the host count: their launch ended before the result of the step before was there, and
so did the launch of the next one before their own result. The time between the two results is then the GPU's.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from steelyard import load_scenario
from steelyard.cost import CompiledCost, GraphPlan, graph_plan
from steelyard.files.jsontext import json_lines
from steelyard.sim.setup import set_up
from steelyard.validate.steps import RecordedStep, read_steps

_EARLY = (2e-3, 0.5e-3)  # seconds by which a launch, and the next one, must have ended
_WIDTH = 64  # decodes of a row
_FEWEST = 10  # steps of a row

Times = dict[tuple[str, int], list[tuple[float, float]]]  # measured and predicted, by launch and decodes


def gpu_times(path: Path, cost: CompiledCost, graphs: GraphPlan) -> Times:
    """Seconds of the steps that the GPU alone determined."""
    rows = [row for _, row in json_lines(path, None)]
    steps: list[RecordedStep] = read_steps(path)
    found: Times = defaultdict(list)
    for k, (before, row) in enumerate(pairwise(rows[:-1]), 1):
        after = rows[k + 1]
        ahead = row["t_launched"] < before["t_result"] - _EARLY[0]
        if ahead and after["t_launched"] < row["t_result"] - _EARLY[1]:
            step = steps[k]
            kind = (step.launch(graphs), step.decodes // _WIDTH * _WIDTH)
            found[kind].append((row["t_result"] - before["t_result"], step.time(cost).gpu))
    return found


def main(scenario_file: Path, path: Path) -> None:
    """Print the table."""
    scenario = load_scenario(scenario_file)
    cost = set_up(scenario).answers[0].cost
    assert isinstance(cost, CompiledCost)
    print("| launched | decodes | steps | measured | predicted | error |\n| --- | --: | --: | --: | --: | --: |")
    for (launch, decodes), pairs in sorted(gpu_times(path, cost, graph_plan(scenario.engine)).items()):
        if len(pairs) >= _FEWEST:
            seen, said = (sum(each) / len(pairs) for each in zip(*pairs, strict=True))
            row = (launch, f"{decodes} to {decodes + _WIDTH - 1}", len(pairs), f"{seen * 1e3:.2f} ms")
            print("| " + " | ".join(map(str, row)) + f" | {said * 1e3:.2f} ms | {said / seen - 1:+.1%} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
