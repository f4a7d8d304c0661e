"""Engines whose cached tokens are dealt out to GPUs: what goes with them."""

from __future__ import annotations

from steelyard.errors import UserError
from steelyard.scenario import EngineSpec, PoolSpec


def check_context_parallel(pool: PoolSpec, engine: EngineSpec) -> None:
    """Refuse what is not simulated together with tokens dealt out."""
    others = {
        f"pp: {pool.pp}": pool.pp > 1,
        f"dp: {pool.dp}": pool.dp > 1,
        "drafts": engine.drafts > 0,
        f"scheduler: {engine.scheduler}": engine.scheduler != "vllm",
        "tiers": bool(engine.tiers),
    }
    for name, given in others.items():
        if given:
            raise UserError(f"dcp: {pool.dcp} is not simulated together with {name}; use dcp: 1, or leave it out")
