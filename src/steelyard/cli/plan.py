"""``steelyard plan``"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, out
from steelyard.cli.options import Posttrain, Set
from steelyard.posttrain.part import recommended
from steelyard.report.posttrain import advice_data, print_advice
from steelyard.scenario import load_posttrain


def command(
    scenario: Posttrain,
    set_: Set = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Recommend how to split a scenario's GPUs between rollout and training, and how to lay both out.

    Plans are simulated, or predicted by a model (--set planner=search), which is faster.
    """
    loaded = load_posttrain(scenario, set_ or [])
    with LateProgress("simulating plans") as progress:
        advice = recommended(loaded, watch=progress)
    if json_:
        typer.echo(json.dumps(advice_data(advice), indent=2))
    else:
        print_advice(advice, out)
