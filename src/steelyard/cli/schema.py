"""``steelyard schema``"""

from __future__ import annotations

import json

import typer

from steelyard.scenario import json_schema


def command() -> None:
    """Print the JSON Schema of a scenario file."""
    typer.echo(json.dumps(json_schema(), indent=2))
