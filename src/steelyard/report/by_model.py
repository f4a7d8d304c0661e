"""How each model of a fleet that serves several was served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.report.words import count, pick, seconds, significant

MODELS_HEAD = ("Model", "requests", "TTFT p50", "p95", "TPOT p50", "p95", "tokens/s", "end to end p50", "p95")
ON_A_TERMINAL = 7  # columns that it has room for


def model_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row for each model; none where there is one."""
    return [
        [
            name,
            _requests(model),
            *(seconds(pick(model, metric, level)) for metric in ("ttft", "tpot") for level in ("p50", "p95")),
            significant(pick(model, "output_tokens_per_s")),
            *(seconds(pick(model, "e2e", level)) for level in ("p50", "p95")),
        ]
        for name, model in summary.get("models", {}).items()
    ]


def _requests(model: Mapping[str, Any]) -> str:
    asked, finished = count(model["requests"]), count(model["finished"])
    return asked if asked == finished else f"{finished} of {asked}"
