"""What ``--check`` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from steelyard.cli.console import err
from steelyard.sim.invariants import BrokenResult


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
