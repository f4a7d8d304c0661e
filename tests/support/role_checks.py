"""What must hold of roles after every change."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.posttrain.roles import Tenure


def in_two_roles(tenures: Sequence[Tenure]) -> bool:
    """Whether any GPU was in two of them at the same time."""
    return any(
        set(one.gpus) & set(other.gpus) and one.since < other.until and other.since < one.until
        for place, one in enumerate(tenures)
        for other in tenures[:place]
    )
