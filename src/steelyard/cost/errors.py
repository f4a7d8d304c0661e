"""How far off operator times usually are, by where they come from.

For profiles these are near the median errors on held-out points, the worse of two sets (`steelyard.cost.heldout` and
`docs/profiles.md`). For the roofline they are near what `python -m tools.roofline_errors h200` finds for long kernels;
short ones of attention are worse. Element-wise kernels and collectives have no held-out points: theirs are chosen.
"""

from __future__ import annotations

from steelyard.cost.compiled import CompiledCost
from steelyard.cost.speculation import SpeculativeCost

_MEASURED = {"gemm": 0.04, "experts": 0.04, "attention": 0.05, "small": 0.10, "collective": 0.15}
_ANALYTIC = {"gemm": 0.15, "experts": 0.30, "attention": 0.25, "small": 0.40, "collective": 0.25}


def operator_errors(cost: CompiledCost | SpeculativeCost) -> dict[str, float]:
    """One standard error of each family that the cost is made of."""
    return {
        family: (_ANALYTIC if "roofline" in sources else _MEASURED)[family] for family, sources in cost.families.items()
    }
