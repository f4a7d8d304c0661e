"""``steelyard plan``"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, out, say
from steelyard.cli.options import Posttrain, Set
from steelyard.posttrain.part import recommended
from steelyard.records.jsontext import readable
from steelyard.report.posttrain import advice_data, print_advice
from steelyard.report.steps_per_day import steps_figures, steps_lines
from steelyard.scenario import load_posttrain
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.search.steps_per_day import gpus_for_steps


def command(
    scenario: Posttrain,
    set_: Set = None,
    steps_per_day: Annotated[
        float | None,
        typer.Option(min=1e-3, max=1e6, help="Find the smallest number of GPUs that makes so many steps a day."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Recommend how to split a scenario's GPUs between rollout and training, and how to lay both out.

    Plans are simulated, or predicted by a model (--set planner=search), which is faster.
    """
    loaded = load_posttrain(scenario, set_ or [])
    if steps_per_day is not None:
        _size(loaded, steps_per_day, json_)
        return
    with LateProgress("simulating plans") as progress:
        advice = recommended(loaded, watch=progress)
    if json_:
        typer.echo(json.dumps(advice_data(advice), indent=2))
    else:
        print_advice(advice, out)


def _size(scenario: PosttrainScenario, wanted: float, as_json: bool) -> None:
    with LateProgress("simulating plans") as progress:
        answer = gpus_for_steps(scenario, wanted, progress)
    if as_json:
        typer.echo(readable(steps_figures(answer)), nl=False)
        return
    for line in steps_lines(answer):
        say(line)
