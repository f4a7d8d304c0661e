"""How long prompts, outputs and pauses are."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from steelyard.scenario.base import Spec, mistake, number_or_kind
from steelyard.scenario.numbers import (
    Bound,
    Exponent,
    LawTokens,
    LogDeviation,
    PositiveSeconds,
    Scale,
    Seconds,
    Tokens,
    WeightOrZero,
    unit,
)

_Z95 = 1.6448536269514722  # the standard normal's 95th percentile
_EITHER = unit("tokens or s")  # of what is drawn


class FixedTokens(Spec):
    """Always the same length. Short form: the bare number."""

    kind: Literal["fixed"] = Field(description="Every draw has the same length.")
    tokens: Tokens = Field(description="The length in tokens.")


class UniformTokens(Spec):
    """Every whole number from min to max is equally likely."""

    kind: Literal["uniform"] = Field(description="Whole numbers from min to max, both included, equally likely.")
    min: Tokens = Field(description="Smallest length in tokens.")
    max: Tokens = Field(description="Largest length in tokens.")

    @model_validator(mode="after")
    def _ordered(self) -> UniformTokens:
        refuse_disorder("min", self.min, "max", self.max)
        return self


class Lognormal(Spec):
    """A long tail, the usual shape of chat lengths. Draws outside min..max are set to the limit."""

    kind: Literal["lognormal"] = Field(description="Normal on a log scale.")
    median: Scale | None = Field(
        default=None, description="Half of the draws are below this. Goes with p95 or sigma.", json_schema_extra=_EITHER
    )
    mean: Scale | None = Field(
        default=None, description="Average before min and max apply. Goes with sigma.", json_schema_extra=_EITHER
    )
    p95: Scale | None = Field(
        default=None, description="95 in 100 draws are below this. Goes with median.", json_schema_extra=_EITHER
    )
    sigma: LogDeviation | None = Field(default=None, description="Standard deviation of the natural logarithm.")
    min: Bound | None = Field(
        default=None,
        description="Smaller draws become this (lengths are at least 1 anyway).",
        json_schema_extra=_EITHER,
    )
    max: Scale | None = Field(default=None, description="Larger draws become this.", json_schema_extra=_EITHER)

    @model_validator(mode="after")
    def _determined(self) -> Lognormal:
        shape = {"median": self.median, "mean": self.mean, "p95": self.p95, "sigma": self.sigma}
        given = {name for name, value in shape.items() if value is not None}
        if given not in ({"median", "p95"}, {"median", "sigma"}, {"mean", "sigma"}):
            found = " and ".join(sorted(given)) or "none of them"
            raise mistake(f"give median and p95, or median and sigma, or mean and sigma (found {found})")
        if self.median is not None and self.p95 is not None:
            refuse_disorder("median", self.median, "p95", self.p95)
        if self.min is not None and self.max is not None:
            refuse_disorder("min", self.min, "max", self.max)
        return self

    def parameters(self) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm."""
        if self.sigma is not None:
            if self.median is not None:
                return math.log(self.median), self.sigma
            assert self.mean is not None
            return math.log(self.mean) - self.sigma**2 / 2, self.sigma
        assert self.median is not None and self.p95 is not None
        return math.log(self.median), math.log(self.p95 / self.median) / _Z95


class ZipfTokens(Spec):
    """A power law: a length of x tokens has a chance proportional to x to the power of -exponent."""

    kind: Literal["zipf"] = Field(description="Chance of x tokens is proportional to x ** -exponent.")
    min: LawTokens = Field(description="Smallest length in tokens.")
    max: LawTokens = Field(description="Largest length in tokens.")
    exponent: Exponent = Field(default=1.0, description="How steeply the chance falls with length.")

    @model_validator(mode="after")
    def _ordered(self) -> ZipfTokens:
        refuse_disorder("min", self.min, "max", self.max)
        return self


class EmpiricalTokens(Spec):
    """Observed lengths: a file, a list or a histogram. Give exactly one of the three."""

    kind: Literal["empirical"] = Field(description="Drawn, with replacement, from observed lengths.")
    file: str | None = Field(default=None, description="Text file with one length per line; relative to the scenario.")
    values: tuple[Tokens, ...] | None = Field(default=None, min_length=1, description="The lengths themselves.")
    histogram: tuple[tuple[Tokens, Tokens, WeightOrZero], ...] | None = Field(
        default=None,
        min_length=1,
        description="Bins [smallest, largest, weight]; uniform inside a bin.",
        json_schema_extra=unit("tokens and weight"),
    )

    @model_validator(mode="after")
    def _one_source(self) -> EmpiricalTokens:
        sources = {"file": self.file, "values": self.values, "histogram": self.histogram}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise mistake(f"give exactly one of file, values and histogram (found {found})")
        for i, (low, high, _) in enumerate(self.histogram or ()):
            refuse_disorder("smallest", low, "largest", high, "histogram", i)
        if self.histogram and not any(weight for _, _, weight in self.histogram):
            raise mistake("at least one bin needs a weight above 0", "histogram")
        return self


class FixedSeconds(Spec):
    """Always the same time. Short form: the bare number."""

    kind: Literal["fixed"] = Field(description="Every draw is the same.")
    seconds: Seconds = Field(description="The time in seconds.")


class UniformSeconds(Spec):
    """Any time from min to max is equally likely."""

    kind: Literal["uniform"] = Field(description="Anything from min to max, equally likely.")
    min: Seconds = Field(description="Shortest time in seconds.")
    max: Seconds = Field(description="Longest time in seconds.")

    @model_validator(mode="after")
    def _ordered(self) -> UniformSeconds:
        refuse_disorder("min", self.min, "max", self.max)
        return self


class ExponentialSeconds(Spec):
    """Memoryless pauses."""

    kind: Literal["exponential"] = Field(description="Memoryless: short pauses common, long ones rare.")
    mean: PositiveSeconds = Field(description="Average time in seconds.")


def refuse_disorder(low_name: str, low: float, high_name: str, high: float, *path: str | int) -> None:
    """Refuse two limits in the wrong order."""
    if low > high:
        raise mistake(f"{low_name} ({low:g}) is above {high_name} ({high:g})", *path)


_TOKENS = (FixedTokens, UniformTokens, Lognormal, ZipfTokens, EmpiricalTokens)
_SECONDS = (FixedSeconds, UniformSeconds, ExponentialSeconds, Lognormal)
_AnyTokens = Annotated[
    FixedTokens | UniformTokens | Lognormal | ZipfTokens | EmpiricalTokens, Field(discriminator="kind")
]
_AnySeconds = Annotated[FixedSeconds | UniformSeconds | ExponentialSeconds | Lognormal, Field(discriminator="kind")]

expand_tokens = number_or_kind("tokens", *_TOKENS)
expand_seconds = number_or_kind("seconds", *_SECONDS)

TokensSpec = Annotated[_AnyTokens, BeforeValidator(expand_tokens, json_schema_input_type=Tokens | _AnyTokens)]
SecondsSpec = Annotated[_AnySeconds, BeforeValidator(expand_seconds, json_schema_input_type=Seconds | _AnySeconds)]
