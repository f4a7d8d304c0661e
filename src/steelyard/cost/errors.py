"""How far off operator times usually are, by where they come from.

Such that about nine in ten points that no source was given lie within 1.645 of them (`steelyard fidelity` counts them):

- Measured and interpolated: held-out points of the profile (`steelyard.cost.heldout`, `docs/profiles.md`).
- Extrapolated: held-out points of shapes that the profile lacks. There are none of attention; its error is chosen.
- Transferred: NVIDIA's tables of the H100, from those of the H200 (`python -m tools.transfer_errors h100`), and the
  error of the profile that is transferred.
- Analytic: the same held-out points by the roofline, as far as they take 20 µs and more.

Element-wise kernels, collectives and recurrent layers have no such points: theirs are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

from steelyard.cost.compiled import CompiledCost
from steelyard.cost.source import Provenance
from steelyard.cost.speculation import SpeculativeCost

_MEASURED = {"gemm": 0.04, "experts": 0.04, "attention": 0.05, "small": 0.10, "collective": 0.15}
ERRORS: Mapping[Provenance, Mapping[str, float]] = {
    "measured": _MEASURED,
    "interpolated": _MEASURED,
    "extrapolated": {"gemm": 0.07, "experts": 0.09, "attention": 0.10, "small": 0.15, "collective": 0.20},
    "transferred": {"gemm": 0.08, "experts": 0.09, "attention": 0.08, "small": 0.15, "collective": 0.25},
    "analytic": {
        "gemm": 0.15,
        "experts": 0.30,
        "attention": 0.50,
        "small": 0.40,
        "collective": 0.25,
        "recurrence": 0.40,
    },
}
"""One standard error of a family's times, by their provenance."""


def operator_errors(cost: CompiledCost | SpeculativeCost) -> dict[str, float]:
    """One standard error of each family that the cost is made of. Operators of one provenance are off together, and so
    are those of several: errors add up by their shares of the family's time."""
    return {
        family: sum(share * ERRORS[kind][family] for kind, share in shares.items())
        for family, shares in cost.shares.items()
    }
