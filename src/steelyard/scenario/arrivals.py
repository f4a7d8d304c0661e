"""When requests arrive. Rates are requests (for sessions: sessions) per second over the whole fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from steelyard.scenario.base import Spec, kind_required, mistake
from steelyard.scenario.distributions import FixedSeconds, SecondsSpec
from steelyard.scenario.numbers import (
    MOST_SECONDS,
    Factor,
    Interval,
    Rate,
    RateOrZero,
    Requests,
    Seconds,
    Variation,
    unit,
)


class PoissonArrivals(Spec):
    """Independent users: gaps are exponential."""

    kind: Literal["poisson"] = Field(description="Exponential gaps, as many independent users make them.")
    rate: Rate = Field(description="Average arrivals per second over the whole fleet.")


class GammaArrivals(Spec):
    """Gaps with a chosen burstiness."""

    kind: Literal["gamma"] = Field(description="Gamma-distributed gaps: burstier or steadier than Poisson.")
    rate: Rate = Field(description="Average arrivals per second over the whole fleet.")
    cv: Variation = Field(description="Standard deviation of a gap over its mean: 1 is Poisson, more is burstier.")


class ConstantArrivals(Spec):
    """Equal gaps; the first arrival is at second 0."""

    kind: Literal["constant"] = Field(description="Equal gaps, the first arrival at second 0.")
    rate: Rate = Field(description="Arrivals per second over the whole fleet.")


class BurstArrivals(Spec):
    """All requests at once."""

    kind: Literal["burst"] = Field(description="All arrivals at one moment.")
    at: Seconds = Field(default=0.0, description="Second at which all requests arrive.")


class Wave(Spec):
    """A sinusoidal rate: mean + amplitude * sin(2 pi t / period)."""

    mean: Rate = Field(description="Average arrivals per second.")
    amplitude: RateOrZero = Field(description="Arrivals per second that the rate rises and falls by; at most the mean.")
    period: Interval = Field(description="Seconds from peak to peak.")

    @model_validator(mode="after")
    def _never_negative(self) -> Wave:
        if self.amplitude > self.mean:
            raise mistake(f"amplitude ({self.amplitude:g}) is above mean ({self.mean:g}): the rate would be negative")
        return self


Points = tuple[tuple[Seconds, RateOrZero], ...]


def _profile_form(value: Any) -> str:
    return "wave" if isinstance(value, Mapping | Wave) else "points"


Profile = Annotated[Annotated[Points, Tag("points")] | Annotated[Wave, Tag("wave")], Discriminator(_profile_form)]


class VaryingArrivals(Spec):
    """A Poisson stream whose rate changes with time."""

    kind: Literal["varying"] = Field(description="Poisson with a rate that changes over time.")
    profile: Profile = Field(
        description="Points [[second, rate], ...] joined by straight lines; the first and last rate hold "
        "before and after them. Or a wave {mean, amplitude, period}.",
        json_schema_extra=unit("s and 1/s"),
    )

    @model_validator(mode="after")
    def _runs_forward(self) -> VaryingArrivals:
        if isinstance(self.profile, Wave):
            return self
        if not self.profile:
            raise mistake("needs at least one [second, rate] point", "profile")
        for i, ((before, _), (after, _)) in enumerate(zip(self.profile, self.profile[1:], strict=False), 1):
            if after <= before:
                raise mistake(f"second {after:g} is not after {before:g}; points must go forward in time", "profile", i)
        if not any(rate for _, rate in self.profile):
            raise mistake("the rate is 0 everywhere: at least one point needs a rate above 0", "profile")
        return self

    def expected(self, duration: float) -> float:
        """Arrivals within a duration, on average; of a wave, of whole periods."""
        if isinstance(self.profile, Wave):
            return self.profile.mean * duration
        before, rate, total = 0.0, self.profile[0][1], 0.0
        for second, following in (*self.profile, (MOST_SECONDS, self.profile[-1][1])):
            until = min(second, duration)
            if until > before:
                at_end = rate + (following - rate) * (until - before) / (second - before)
                total += (until - before) * (rate + at_end) / 2
            before, rate = max(before, second), following
        return total


class ClosedArrivals(Spec):
    """A fixed number of users. Each waits for its answer, pauses, and sends its next request."""

    kind: Literal["closed"] = Field(description="Closed loop: a user sends its next request after the last has ended.")
    users: Requests = Field(
        description="Users of the whole fleet; requests are assigned to them in turn.", json_schema_extra=unit("users")
    )
    think: SecondsSpec = Field(
        default=FixedSeconds(kind="fixed", seconds=0.0),
        description="Seconds between an answer and the user's next request.",
    )
    ramp: Seconds = Field(default=0.0, description="Seconds over which users start, evenly spread; 0: all at once.")


class TraceArrivals(Spec):
    """The arrival times of the trace."""

    kind: Literal["trace"] = Field(description="The arrival times of the workload's trace (its default).")
    scale: Factor = Field(default=1.0, description="Speed-up: 2 plays the trace twice as fast.")


_ARRIVALS = (
    PoissonArrivals,
    GammaArrivals,
    ConstantArrivals,
    BurstArrivals,
    VaryingArrivals,
    ClosedArrivals,
    TraceArrivals,
)
ArrivalsSpec = Annotated[
    PoissonArrivals
    | GammaArrivals
    | ConstantArrivals
    | BurstArrivals
    | VaryingArrivals
    | ClosedArrivals
    | TraceArrivals,
    Field(discriminator="kind"),
    BeforeValidator(kind_required(*_ARRIVALS)),
]
