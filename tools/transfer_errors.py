"""Transferred operator times against NVIDIA's tables: `python -m tools.transfer_errors h100`.

Needs `steelyard[silicon]`. Prints the table of `docs/profiles.md`: for each kind of operator the median and the 95th
percentile of the absolute errors, and their median with its sign (`steelyard.validate.transfer`).
"""

from __future__ import annotations

import sys

import numpy as np

from steelyard.cost.transferred import SIBLINGS
from steelyard.errors import UserError
from steelyard.validate.transfer import transfer_errors


def table(gpu: str) -> str:
    """As Markdown."""
    if gpu not in SIBLINGS:
        raise UserError(f"{gpu} has no sibling with a profile; give one of {', '.join(SIBLINGS)}")
    found, donor = transfer_errors(gpu), SIBLINGS[gpu]
    if found is None:
        raise UserError(f"NVIDIA's tables of {gpu} and {donor} are needed: pip install 'steelyard[silicon]'")
    head = (
        f"our profile of the {donor}, transferred, to tables of the {gpu}",
        f"our profile of the {donor} to its tables",
        f"tables of the {donor}, transferred, to those of the {gpu}",
    )
    lines = [f"| operators | points | {' | '.join(head)} |", "| --- | --: | --: | --: | --: |"]
    for kind, last in found[2].items():
        cells = (_summary(each.get(kind)) for each in found)
        lines.append(f"| {kind} | {len(last):,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _summary(errors: list[float] | None) -> str:
    if not errors:
        return "–"
    median, p95 = np.percentile(np.abs(errors), [50, 95])
    return f"{median:.1%}, {p95:.1%}, {np.median(errors):+.1%}"


if __name__ == "__main__":
    print(table(sys.argv[1] if len(sys.argv) > 1 else "h100"))
