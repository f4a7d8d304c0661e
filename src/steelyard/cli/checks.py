"""Checks of scenarios before commands, and of results after them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from steelyard.cli.console import err
from steelyard.errors import UserError
from steelyard.sim.invariants import BrokenResult

if TYPE_CHECKING:
    from steelyard.scenario.posttrain import PosttrainScenario


def check_as_written(scenario: PosttrainScenario) -> None:
    """Raise UserError if the way to run a scenario is still to be chosen, for commands that run it as written."""
    if scenario.objective is not None:
        raise UserError(
            f"{scenario.source}: objective: {scenario.objective}: this command runs a scenario as it is written; leave "
            "it out, and paste the keys that `steelyard plan` chooses"
        )


@contextmanager
def checking() -> Iterator[None]:
    """Around a check of a result: what it violates goes to standard error, and the exit code is 1."""
    try:
        yield
    except BrokenResult as broken:
        err.print(
            f"the result violates {len(broken.violations)} invariants:\n{broken}", soft_wrap=True, highlight=False
        )
        raise typer.Exit(1) from None
