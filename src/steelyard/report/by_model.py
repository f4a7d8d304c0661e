"""Figures by model, for fleets that serve several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.words import count, seconds, significant

if TYPE_CHECKING:
    from steelyard.sim import Summary
    from steelyard.sim.summary import ModelFigures

MODELS_HEAD = ("Model", "requests", "TTFT p50", "p95", "TPOT p50", "p95", "tokens/s", "end to end p50", "p95")
ON_A_TERMINAL = 7  # columns that fit on a terminal


def model_rows(summary: Summary) -> list[list[str]]:
    """One row for each model; none in a fleet of one model."""
    return [
        [
            name,
            _requests(model),
            *(seconds(level) for spread in (model.ttft, model.tpot) for level in (spread.p50, spread.p95)),
            significant(model.output_tokens_per_s),
            *map(seconds, (model.e2e.p50, model.e2e.p95)),
        ]
        for name, model in summary.models.items()
    ]


def _requests(model: ModelFigures) -> str:
    asked, finished = count(model.requests), count(model.finished)
    return asked if asked == finished else f"{finished} of {asked}"
