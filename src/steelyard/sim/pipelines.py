"""Pipeline parallelism: what it can be combined with, and its bubble."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.engine import Engine, Pipeline
from steelyard.errors import UserError
from steelyard.model import Layout
from steelyard.scenario import EngineSpec


def check_pipeline(layout: Layout, engine: EngineSpec) -> None:
    """Refuse settings that are not simulated together with ``pp``."""
    others = {
        f"dp: {layout.dp}": layout.dp > 1,
        "drafts": engine.drafts > 0,
        f"scheduler: {engine.scheduler}": engine.scheduler not in ("vllm", "sarathi"),
        "tiers": bool(engine.tiers),
        "fresh: true": engine.fresh,
    }
    for name, given in others.items():
        if given:
            raise UserError(
                f"pp: {layout.pp} stages are not simulated together with {name}; use pp: 1, or leave it out"
            )


def bubble(engines: Sequence[Engine]) -> float | None:
    """Share of time that stages idled while others worked; None for engines of one stage."""
    own = [each.stages for each in engines if isinstance(each, Pipeline)]
    if not own:
        return None
    room = sum(each.occupied * len(each.costs) for each in own)
    return 1 - sum(each.worked for each in own) / room if room else 0.0
