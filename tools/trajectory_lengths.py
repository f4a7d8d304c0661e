"""Lengths of trajectories of presets and files: ``python -m tools.trajectory_lengths``.

Each name is a preset or a trajectory file; without names, all presets are used. With ``--save FOLDER`` a preset's
trajectories are written there, for ``steelyard estimator-eval``.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from steelyard.errors import UserError, did_you_mean
from steelyard.records import Trajectory
from steelyard.scenario.rollouts import preset_names, trajectories_spec
from steelyard.workload.trajectories.read import read_trajectories
from steelyard.workload.trajectories.tasks import trajectories_of
from steelyard.workload.trajectories.write import write_trajectories

_PERCENTILES = (50, 90, 99)

_MARGINALS: dict[str, Callable[[Trajectory], Sequence[float]]] = {
    "turns": lambda each: [len(each.turns)],
    "generated, a turn": lambda each: [turn.generated for turn in each.turns],
    "returned, a call": lambda each: [turn.returned for turn in each.turns if turn.tool is not None],
    "generated": lambda each: [each.generated],
    "returned": lambda each: [sum(turn.returned for turn in each.turns)],
    "total": lambda each: [each.prompt_tokens + each.generated + sum(turn.returned for turn in each.turns)],
    "seconds, a call": lambda each: [turn.latency for turn in each.turns if turn.latency is not None],
    "seconds in tools": lambda each: (
        [sum(turn.latency or 0.0 for turn in each.turns)]
        if any(turn.latency is not None for turn in each.turns)
        else []
    ),
}


def trajectories(name: str, step: int, seed: int, **changed: int) -> list[Trajectory]:
    """The trajectories of a preset's training step, or of a file."""
    if name in preset_names():
        return list(trajectories_of(trajectories_spec({"preset": name, **changed}, name), seed).step(step))
    if Path(name).is_file():
        return read_trajectories(Path(name))
    raise UserError(f"{name!r} is neither a file nor a preset; {did_you_mean(name, preset_names())}")


def table(name: str, every: Sequence[Trajectory]) -> list[str]:
    """Lines of a Markdown table: p50, p90 and p99 of each marginal, and how calls and trajectories end."""
    lines = [
        f"| {name} | " + " | ".join(f"p{each}" for each in _PERCENTILES) + " |",
        "| --- |" + " ---: |" * len(_PERCENTILES),
    ]
    for label, values_of in _MARGINALS.items():
        values = [value for each in every for value in values_of(each)]
        if values:
            found = np.percentile(values, _PERCENTILES).tolist()
            lines.append(f"| {label} | " + " | ".join(_figure(value) for value in found) + " |")
    outcomes: Counter[str] = Counter(turn.outcome for each in every for turn in each.turns if turn.tool is not None)
    ends = Counter(each.end or "not said" for each in every)
    return [*lines, "", f"{len(every):,} trajectories; calls: {_shares(outcomes)}; ends: {_shares(ends)}", ""]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 or value == int(value) else f"{value:.1f}"


def _shares(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    return ", ".join(f"{name} {count / total:.1%}" for name, count in sorted(counts.items(), key=lambda each: -each[1]))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.trajectory_lengths", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"presets ({', '.join(preset_names())}) or files; all presets if none")
    parser.add_argument("--step", type=int, default=0, help="training step (0)")
    parser.add_argument("--seed", type=int, default=1, help="seed (1)")
    parser.add_argument("--prompts", type=int, help="prompts of the step, where not the preset's own")
    parser.add_argument("--group", type=int, help="samples of each prompt, where not the preset's own")
    parser.add_argument("--save", type=Path, help="folder to write presets' trajectories to, as NAME.jsonl")
    given = parser.parse_args(words)
    sizes = {key: value for key, value in (("prompts", given.prompts), ("group", given.group)) if value is not None}
    for name in given.names or preset_names():
        every = trajectories(name, given.step, given.seed, **sizes)
        print("\n".join(table(Path(name).name, every)))
        if given.save is not None and name in preset_names():
            given.save.mkdir(parents=True, exist_ok=True)
            write_trajectories(given.save / f"{name}.jsonl", every)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
