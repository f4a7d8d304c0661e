"""`python -m studies tail`: what wide engines save for the last trajectories of a rollout on narrow ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from rich.progress import track

from steelyard import load_posttrain
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.run import posttrain
from studies.page import images, write_section
from studies.runs import EXAMPLES
from studies.svg import Curve, Panel, figure

TEMPLATE = EXAMPLES / "studies" / "tail.yaml"
LOADS = {
    "512 x Qwen3-32B": (),
    "2,048 x Qwen3-14B": ("model=qwen3-14b", "trajectories.prompts=128", "trajectories.group=16"),
}
FEW = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
STARTS = {"as the paper's": 4.44, "new processes": 60.0}  # seconds; with weights the first makes 4.5
_NONE, _OWN, _REPACK = "no change", "when it is predicted to pay", "repack: the same engines, fewer of them"
_WIDE = "TP8 from the beginning"
WAYS = {
    _NONE: ("tail=none",),
    _REPACK: ("tail=repack",),
    **{f"at {share:.1%} left": (f"tail={{kind: reconfigure, few: {share}}}",) for share in FEW},
    _OWN: ("tail=reconfigure",),
    "the same, lengths known": ("tail=reconfigure", "estimator=oracle"),
    **{f"the same, {name}": (f"tail={{kind: reconfigure, start: {start}}}",) for name, start in STARTS.items()},
    _WIDE: ("tail=none", "rollout=[{tp: 8, replicas: 2}]"),
}


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of a run, step by step."""

    seconds: list[float]
    switched: list[float]  # seconds into the step
    left: list[int]  # trajectories then
    switch: list[float]  # seconds that it took
    ends: list[float]  # of the first step's trajectories


def main(changes: Sequence[str]) -> None:
    """All ways under both loads; the figure and the page's section if nothing was changed."""
    runs: dict[tuple[str, str], Rollouts] = {}
    for load, way in track([(load, way) for load in LOADS for way in WAYS], "tail"):
        scenario = load_posttrain(TEMPLATE, [*LOADS[load], *WAYS[way], *changes])
        runs[load, way] = rollouts_of(posttrain(scenario))
    text = table(runs)
    print(text)
    if not changes:
        images().joinpath("tail.svg").write_text(drawn(runs), encoding="utf-8")
        write_section("tail", text)


def rollouts_of(result: PosttrainResult) -> Rollouts:
    """When each step's rollout ended, and what was changed in it."""
    begun = [0.0, *(step.synced for step in result.records)]
    ended = [step.begun - step.handing_over for step in result.records]
    trajectories = result.trajectories
    first = np.asarray(trajectories["ended"])[np.asarray(trajectories["step"]) == 0]
    changes = result.summary.get("tail", {}).get("reconfigured", [])
    since = [each["at"] - max(start for start in begun if start <= each["at"]) for each in changes]
    return Rollouts(
        [end - start for start, end in zip(begun, ended, strict=False)],
        since,
        [each["left"] for each in changes],
        [each["seconds"] for each in changes],
        np.sort(first).tolist(),
    )


def table(runs: dict[tuple[str, str], Rollouts]) -> str:
    """Means over steps for each load."""
    lines = []
    for load in LOADS:
        lines += [
            f"**{load}**",
            "",
            "| engines for the last trajectories | rollout, mean (steps) | of no change | changed at | left | takes |",
            "| --- " * 6 + "|",
        ]
        none = mean(runs[load, _NONE].seconds)
        lines += [_row(way, runs[load, way], none) for way in WAYS]
        lines.append("")
    return "\n".join(lines).rstrip()


def _row(way: str, run: Rollouts, none: float) -> str:
    spread = f"{mean(run.seconds):.1f} s ({min(run.seconds):.0f} to {max(run.seconds):.0f})"
    cells = [way, spread, f"{mean(run.seconds) / none:.2f}"]
    if run.left:
        cells += [f"{mean(run.switched):.0f} s", f"{mean(run.left):.0f}", f"{mean(run.switch):.2f} s"]
    else:
        cells += [""] * 3
    return f"| {' | '.join(cells)} |"


def drawn(runs: dict[tuple[str, str], Rollouts]) -> str:
    """The first rollout of each load, and all by when engines are changed."""
    shown = (_NONE, _OWN, _WIDE)
    panels: list[Panel] = []
    for load in LOADS:
        curves = []
        for way in shown:
            ends = runs[load, way].ends
            curves.append(Curve(way, [0.0, *ends], list(range(len(ends), -1, -1)), kind="steps"))
        panels.append(Panel(f"Left in the first step, {load}", "seconds", "trajectories", curves))
    forced = [way for way in WAYS if way.startswith("at ")]
    by_share = []
    for load in LOADS:
        none = mean(runs[load, _NONE].seconds)
        by_share.append(
            Curve(load, [100 * share for share in FEW], [mean(runs[load, way].seconds) / none for way in forced])
        )
    limits = [(mean(runs[load, _OWN].seconds) / mean(runs[load, _NONE].seconds), _OWN) for load in LOADS]
    panels.append(Panel("Rollout by share left", "% left at the change", "of no change", by_share, limits))
    return figure("Wide engines for the last trajectories", panels)
