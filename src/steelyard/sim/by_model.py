"""Several models in one fleet: who asks for which, and how each was served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from steelyard.fleet import Desk, Models
from steelyard.sim.setup import FleetSetup, Setup
from steelyard.sim.summary import Column, describe


def models_at(setup: FleetSetup, stages: Sequence[Sequence[Setup]]) -> Models | None:
    """Who asks for which model and which pools of each stage serve it; None where there is one."""
    if len(setup.models) == 1:
        return None
    scenario = setup.scenario
    asked = [scenario.asked_model(spec) for spec in scenario.workload.mix]
    return Models(asked, [[each.serves for each in stage] for stage in stages])


def add_models(summary: dict[str, Any], setup: FleetSetup, desk: Desk, requests: dict[str, Column]) -> None:
    """Tell of each model and of each pool's, where there are several."""
    if desk.models is None:
        return
    for told, each in zip(summary["pools"], setup.pools, strict=True):
        told["model"] = each.serves
    asked = np.array(desk.models.asked, dtype=object)[desk.workload.label]
    summary["models"] = {
        model: _served(requests, asked == model, summary["duration_s"]) for model in dict.fromkeys(desk.models.asked)
    }


def _served(requests: dict[str, Column], rows: Column, duration: float) -> dict[str, Any]:
    finished = rows & (requests["status"] == "finished")
    tokens = int(requests["output"][finished].sum())
    return {
        "requests": int(rows.sum()),
        "finished": int(finished.sum()),
        **{name: describe(requests[name][finished]) for name in ("ttft", "tpot", "e2e")},
        "output_tokens_per_s": tokens / duration if duration > 0 else 0.0,
    }
