"""Decode context parallelism: what it can be combined with."""

from __future__ import annotations

from steelyard.errors import UserError
from steelyard.model import Layout
from steelyard.scenario import EngineSpec


def check_context_parallel(layout: Layout, engine: EngineSpec) -> None:
    """Refuse settings that are not simulated together with ``dcp``."""
    others = {
        f"pp: {layout.pp}": layout.pp > 1,
        f"dp: {layout.dp}": layout.dp > 1,
        "drafts": engine.drafts > 0,
        f"scheduler: {engine.scheduler}": engine.scheduler != "vllm",
        "tiers": bool(engine.tiers),
    }
    for name, given in others.items():
        if given:
            raise UserError(f"dcp: {layout.dcp} is not simulated together with {name}; use dcp: 1, or leave it out")
