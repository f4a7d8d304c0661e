"""Latency limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from steelyard.errors import did_you_mean
from steelyard.scenario.base import Spec, mistake
from steelyard.scenario.numbers import MOST_SECONDS, PositiveSeconds

METRICS = ("ttft", "attft", "tpot", "itl", "e2e", "queue")
_LIMIT = re.compile(rf"({'|'.join(METRICS)})_(?:p([1-9][0-9]?)|mean)")


class RunLimit(NamedTuple):
    """A limit on a percentile of the whole run, or on its mean (percentile None)."""

    name: str
    metric: str
    percentile: int | None
    seconds: float

    @property
    def may_miss(self) -> float:
        """The share of requests that may be over a limit on a percentile."""
        assert self.percentile is not None
        return 1 - self.percentile / 100


class SloSpec(Spec):
    """Limits in seconds. Also METRIC_pNN (NN is 1 to 99) and METRIC_mean, of ttft, attft, tpot, itl, e2e and queue."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "additionalProperties": False,
            "patternProperties": {
                f"^{_LIMIT.pattern}$": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": MOST_SECONDS,
                    "unit": "s",
                    "description": "The run's percentile or mean of this metric may not exceed this many seconds.",
                }
            },
        },
    )
    __pydantic_extra__: dict[str, PositiveSeconds] = Field(init=False)

    ttft: PositiveSeconds | None = Field(
        default=None, description="Most seconds from submission to the first token of a good request."
    )
    attft: PositiveSeconds | None = Field(
        default=None,
        description="Most seconds from a user's submission to the first token of the visible answer, hidden rounds and "
        "tools included.",
    )
    tpot: PositiveSeconds | None = Field(
        default=None, description="Most seconds per output token of a good request, on average after its first."
    )
    e2e: PositiveSeconds | None = Field(
        default=None, description="Most seconds from submission to the last token of a good request."
    )

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields and not _LIMIT.fullmatch(str(key)):
                    raise mistake(f"unknown limit; {_suggestion(str(key), list(cls.model_fields))}", key)
        return data

    def per_request(self) -> dict[str, float]:
        """Limits that a request must meet to count as goodput. A percentile limit applies if no other is given."""
        limits: dict[str, float] = {}
        percentiles = [limit for limit in self.on_run() if limit.percentile is not None]
        for limit in sorted(percentiles, key=lambda each: each.percentile or 0):
            if limit.metric in type(self).model_fields:
                limits[limit.metric] = limit.seconds
        given = {"ttft": self.ttft, "attft": self.attft, "tpot": self.tpot, "e2e": self.e2e}
        limits.update({metric: seconds for metric, seconds in given.items() if seconds is not None})
        return {metric: limits[metric] for metric in given if metric in limits}

    def on_run(self) -> list[RunLimit]:
        """The limits on the run as a whole, in the order they were written."""
        limits = []
        for name, seconds in self.__pydantic_extra__.items():
            match = _LIMIT.fullmatch(name)
            assert match is not None
            limits.append(RunLimit(name, match[1], int(match[2]) if match[2] else None, seconds))
        return limits


def _suggestion(key: str, fields: list[str]) -> str:
    common = [f"{metric}_{level}" for metric in METRICS for level in ("p50", "p90", "p95", "p99", "mean")]
    hint = did_you_mean(key, fields + common)
    return (
        hint
        if hint.startswith("did")
        else "choose ttft, attft, tpot, e2e, or METRIC_pNN such as ttft_p95, or METRIC_mean"
    )
