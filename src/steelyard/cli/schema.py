"""``steelyard schema``"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from steelyard.scenario import json_schema
from steelyard.scenario.posttrain_loading import posttrain_schema


def command(
    posttrain: Annotated[
        bool, typer.Option("--posttrain", help="Of a post-training scenario instead of a serving one.")
    ] = False,
) -> None:
    """Print the JSON Schema of a scenario file."""
    typer.echo(json.dumps(posttrain_schema() if posttrain else json_schema(), indent=2))
