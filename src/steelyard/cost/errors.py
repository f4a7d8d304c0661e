"""How far off operator times usually are, by where they come from.

For profiles these are about the median errors on points held out of them (`steelyard.cost.heldout`; `docs/profiles.md`
tells of two such sets, and this is nearer to the worse), which is what one shape of a model is off by; for the roofline
what it was off by where there is a profile to compare with.
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
