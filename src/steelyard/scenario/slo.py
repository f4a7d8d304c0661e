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
_LIMIT = re.compile(rf"({'|'.join(METRICS)})_p([1-9][0-9]?)")


class PercentileLimit(NamedTuple):
    """A limit on a percentile of the whole run."""

    name: str
    metric: str
    percentile: int
    seconds: float


class SloSpec(Spec):
    """Limits in seconds. Also METRIC_pNN: METRIC is ttft, attft, tpot, itl, e2e or queue, NN is 1 to 99."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "additionalProperties": False,
            "patternProperties": {
                f"^{_LIMIT.pattern}$": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": MOST_SECONDS,
                    "description": "The run's percentile of this metric may not exceed this many seconds.",
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
        for limit in sorted(self.percentiles(), key=lambda each: each.percentile):
            if limit.metric in type(self).model_fields:
                limits[limit.metric] = limit.seconds
        given = {"ttft": self.ttft, "attft": self.attft, "tpot": self.tpot, "e2e": self.e2e}
        limits.update({metric: seconds for metric, seconds in given.items() if seconds is not None})
        return {metric: limits[metric] for metric in given if metric in limits}

    def percentiles(self) -> list[PercentileLimit]:
        """The limits on the run as a whole, in the order they were written."""
        limits = []
        for name, seconds in self.__pydantic_extra__.items():
            match = _LIMIT.fullmatch(name)
            assert match is not None
            limits.append(PercentileLimit(name, match[1], int(match[2]), seconds))
        return limits


def _suggestion(key: str, fields: list[str]) -> str:
    common = [f"{metric}_p{percent}" for metric in METRICS for percent in (50, 90, 95, 99)]
    hint = did_you_mean(key, fields + common)
    return hint if hint.startswith("did") else "choose ttft, attft, tpot, e2e, or METRIC_pNN such as ttft_p95"
