"""When a pool grows and shrinks by itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from steelyard.scenario.base import Count, NonNegative, Positive, Replicas, Spec, mistake

_OF = {
    "queue": ("target",),
    "slo": ("ttft", "tpot", "window", "percentile", "slack", "step"),
    "schedule": ("schedule",),
}


class ScheduledSpec(Spec):
    """How many replicas there should be from some moment on."""

    at: NonNegative = Field(description="Seconds since the start.")
    replicas: Replicas = Field(description="Engines wanted from then on.")


class AutoscaleSpec(Spec):
    """A pool that begins with its `replicas` and changes their number as it goes; one that is dropped drains first."""

    min: Replicas = Field(default=1, description="Fewest replicas.")
    max: Replicas = Field(description="Most replicas, of which some may still be draining.")
    by: Literal["queue", "slo", "schedule"] = Field(
        default="queue", description="What decides: unfinished requests per replica, latencies, or the time."
    )
    startup: NonNegative = Field(default=60.0, description="Seconds from the decision until a new replica serves.")
    cooldown: NonNegative = Field(default=60.0, description="Seconds after a change without another (not by schedule).")
    every: Positive = Field(default=5.0, description="Seconds between two decisions (not by schedule).")
    target: Positive | None = Field(
        default=None, description="by queue: unfinished requests that each replica should have, queued or running."
    )
    ttft: Positive | None = Field(
        default=None, description="by slo: limit in seconds; of prefill pools, until the prompt is computed."
    )
    tpot: Positive | None = Field(default=None, description="by slo: limit in seconds on the mean time per token.")
    window: Positive = Field(default=30.0, description="by slo: seconds that are looked back on.")
    percentile: Annotated[float, Field(gt=0, lt=100)] = Field(
        default=95.0, description="by slo: which percentile of the window may not exceed the limit."
    )
    slack: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.5, description="by slo: share of the limits below which there are replicas to spare."
    )
    step: Count = Field(default=1, description="by slo: replicas that come or go at a time.")
    schedule: tuple[ScheduledSpec, ...] = Field(default=(), description="by schedule: numbers of replicas by time.")

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
