"""What a user asks for."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from steelyard.errors import UserError, did_you_mean, quoted

POLICIES = ("none", "reactive", "predictive", "ours", "oracle")
_MOST_FIXED = 64  # replicas that are tried where no most is given


@dataclass(frozen=True)
class AdviseSettings:
    """The replicas that may be had, the part of the trace that counts, and the policies to compare."""

    least: int = 1  # replicas
    most: int | None = None  # replicas; twice those of the smallest fixed fleet if not given
    startup: float = 60.0  # seconds until a new replica serves
    speed: float = 1.0  # of the trace: 2 is twice as fast
    start: float = 0.0  # second of the trace, at its own speed
    end: float | None = None  # the same; None: its end
    policies: tuple[str, ...] = POLICIES
    workers: int = 1

    def __post_init__(self) -> None:
        for name in self.policies:
            if name not in POLICIES:
                raise UserError(f"--policies: {quoted(name)} is not known; {did_you_mean(name, POLICIES)}")
        if self.most is not None and self.most < self.least:
            raise UserError(f"--max {self.most}: is less than --min {self.least}")
        for option, value in (("--startup", self.startup), ("--speed", self.speed), ("--from", self.start)):
            if not isfinite(value):
                raise UserError(f"{option} {value}: must be a number")
        if self.end is not None and not self.start < self.end:
            raise UserError(f"--to {self.end:g}: is not after --from {self.start:g}")

    @property
    def most_fixed(self) -> int:
        """The largest fixed fleet to try."""
        return self.most if self.most is not None else max(_MOST_FIXED, self.least)

    @classmethod
    def named(cls, policies: str | None) -> tuple[str, ...]:
        """Policies from a list with commas; all if not given."""
        if policies is None:
            return POLICIES
        return tuple(dict.fromkeys(name.strip() for name in policies.split(",")))
