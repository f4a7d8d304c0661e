"""Several models in one fleet: which requests ask for which model, and figures of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steelyard.fleet import Desk, Models
from steelyard.sim.setup import FleetSetup, Setup
from steelyard.sim.spread import Column, spread_of
from steelyard.sim.summary import ModelFigures


def models_at(setup: FleetSetup, stages: Sequence[Sequence[Setup]]) -> Models | None:
    """The model of each workload, and of each pool by stage; None in a fleet of one model."""
    if len(setup.models) == 1:
        return None
    scenario = setup.scenario
    requested = [scenario.asked_model(spec) for spec in scenario.workload.mix]
    return Models(requested, [[each.serves for each in stage] for stage in stages])


def figures_by_model(desk: Desk, requests: dict[str, Column], duration: float) -> dict[str, ModelFigures]:
    """Figures of each model; empty in a fleet of one model."""
    if desk.models is None:
        return {}
    requested = np.array(desk.models.by_label, dtype=object)[desk.workload.label]
    return {model: _served(requests, requested == model, duration) for model in dict.fromkeys(desk.models.by_label)}


def _served(requests: dict[str, Column], rows: Column, duration: float) -> ModelFigures:
    finished = rows & (requests["status"] == "finished")
    tokens = int(requests["output"][finished].sum())
    return ModelFigures(
        requests=int(rows.sum()),
        finished=int(finished.sum()),
        ttft=spread_of(requests["ttft"][finished]),
        tpot=spread_of(requests["tpot"][finished]),
        e2e=spread_of(requests["e2e"][finished]),
        output_tokens_per_s=tokens / duration if duration > 0 else 0.0,
    )
