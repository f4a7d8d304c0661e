"""Errors of a shipped profile on points held out of it: `python -m tools.held_out_errors h200`.

Prints the table of `docs/profiles.md`.
"""

from __future__ import annotations

import sys

from steelyard.cost.bundle import shipped_bundle
from steelyard.cost.heldout import ALL, HeldOutError, held_out_errors
from steelyard.errors import UserError
from steelyard.hardware import find_gpu


def table(errors: list[HeldOutError]) -> str:
    """As Markdown."""
    lines = [
        "| operators | held-out points | median error | 95th percentile | bias |",
        "| --- | --: | --: | --: | --: |",
    ]
    for each in sorted(errors, key=lambda each: (each.family, each.kind != ALL, each.kind)):
        name = f"**{each.family}**" if each.kind == ALL else each.kind
        lines.append(f"| {name} | {each.points} | {each.median:.1%} | {each.p95:.1%} | {each.bias:+.1%} |")
    return "\n".join(lines)


def main(gpu: str) -> None:
    """Print the table for the bundle shipped for a GPU."""
    bundle = shipped_bundle(gpu)
    if bundle is None:
        raise UserError(f"no profile is shipped for {gpu!r}; one can be measured with `steelyard profile`")
    print(table(held_out_errors(bundle, find_gpu(gpu))))


if __name__ == "__main__":
    main(*sys.argv[1:2])
