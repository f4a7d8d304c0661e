"""Autoscaling of a pool."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from steelyard.scenario.base import Spec, mistake
from steelyard.scenario.numbers import (
    Interval,
    Percentile,
    PositiveAmount,
    PositiveSeconds,
    Replicas,
    Seconds,
    ShareBelowOne,
    unit,
)

_OF = {
    "queue": ("target",),
    "slo": ("ttft", "tpot", "window", "percentile", "slack", "step"),
    "schedule": ("schedule",),
}


class ScheduledSpec(Spec):
    """The number of replicas from some second on."""

    at: Seconds = Field(description="Seconds since the start.")
    replicas: Replicas = Field(description="Replicas from then on.")


class AutoscaleSpec(Spec):
    """Autoscaling: a pool starts with its `replicas`; a replica that is removed drains first."""

    min: Replicas = Field(default=1, description="Fewest replicas.")
    max: Replicas = Field(description="Most replicas, draining ones included.")
    by: Literal["queue", "slo", "schedule"] = Field(
        default="queue", description="The rule: unfinished requests per replica, latencies, or a schedule."
    )
    startup: Seconds = Field(default=60.0, description="Seconds from the decision until a new replica serves.")
    cooldown: Seconds = Field(default=60.0, description="Seconds after a change before the next one (not by schedule).")
    every: Interval = Field(default=5.0, description="Seconds between two decisions (not by schedule).")
    target: PositiveAmount | None = Field(
        default=None,
        description="by queue: target number of unfinished requests per replica, queued or running.",
        json_schema_extra=unit("requests"),
    )
    ttft: PositiveSeconds | None = Field(
        default=None,
        description="by slo: limit on the time to first token, in seconds; in prefill pools, on the end of prefill.",
    )
    tpot: PositiveSeconds | None = Field(
        default=None, description="by slo: limit on a request's mean time per output token, in seconds."
    )
    window: Interval = Field(default=30.0, description="by slo: seconds of the sliding window of latencies.")
    percentile: Percentile = Field(
        default=95.0, description="by slo: percentile of the window that must not exceed the limit."
    )
    slack: ShareBelowOne = Field(
        default=0.5, description="by slo: scale down if all latencies are below this share of their limits."
    )
    step: Replicas = Field(default=1, description="by slo: replicas added or removed at a time.")
    schedule: tuple[ScheduledSpec, ...] = Field(default=(), description="by schedule: number of replicas over time.")

    @model_validator(mode="after")
    def _complete(self) -> AutoscaleSpec:
        if self.min > self.max:
            raise mistake(f"more than max {self.max}", "min")
        changed = self.model_dump(exclude_defaults=True)
        for by, keys in _OF.items():
            for key in keys:
                if by != self.by and key in changed:
                    raise mistake(f"belongs to by: {by}, and this pool scales by {self.by}", key)
        if self.by == "queue" and self.target is None:
            raise mistake("missing; by queue, say how many unfinished requests a replica should have", "target")
        if self.by == "slo" and self.ttft is None and self.tpot is None:
            raise mistake("by slo needs a limit to keep; set ttft or tpot", "by")
        if self.by == "schedule" and not self.schedule:
            raise mistake("missing; by schedule, give a list such as [{at: 60, replicas: 4}]", "schedule")
        before = -1.0
        for i, each in enumerate(self.schedule):
            if each.at <= before:
                raise mistake(f"not after the entry before it, which is at {before:g}", "schedule", i, "at")
            if not self.min <= each.replicas <= self.max:
                raise mistake(f"not within min {self.min} and max {self.max}", "schedule", i, "replicas")
            before = each.at
        return self
