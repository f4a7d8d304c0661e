"""Which differences are real, and which of those matter.

A figure's differences over seeds have a Student interval: paired if both sides had the same requests, otherwise
Welch's. So many figures are looked at that some would differ by chance; Holm's correction keeps the probability of
calling any of a column's differences real by mistake below one less `CONFIDENCE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from steelyard.search.compare.figures import BY_NAME, ComparedFigure
from steelyard.sim.student import half_width, spread, two_sided, welch_freedom

CONFIDENCE = 0.95
RELEVANT = 0.01
"""Relative difference from which on a real difference matters. Chosen: calibrated costs are off by about as much."""
_ROUNDING = 1e-9  # relative difference by which sums in another order may differ

Verdict = Literal["better", "worse", "higher", "lower", "too small to matter", "no clear difference", "not judged"]
Pairing = Literal["paired", "unpaired", "single"]


@dataclass(frozen=True)
class Judged:
    """A figure of one column against the base's, as means over seeds."""

    name: str
    base: float | None
    here: float | None
    verdict: Verdict = "not judged"
    interval: tuple[float, float] | None = None  # of the difference, of this figure by itself
    p: float | None = None  # probability of such a difference by chance, of this figure by itself
    sure: float | None = None  # that it is real, with all figures of the column looked at
    with_costs: tuple[float, float] | None = None  # of the relative difference, with the errors of costs

    @property
    def difference(self) -> float | None:
        """Above 0 if the figure is higher than the base's."""
        return None if self.base is None or self.here is None else self.here - self.base

    @property
    def relative(self) -> float | None:
        """The difference as a share of the base's figure."""
        return None if self.difference is None or not self.base else self.difference / abs(self.base)

    @property
    def relative_interval(self) -> tuple[float, float] | None:
        """The interval as a share of the base's figure."""
        if self.interval is None or not self.base:
            return None
        return self.interval[0] / abs(self.base), self.interval[1] / abs(self.base)

    @property
    def matters(self) -> bool:
        """Whether it is a real difference that matters."""
        return self.verdict in ("better", "worse", "higher", "lower")

    @property
    def holds_with_costs(self) -> bool | None:
        """Whether it keeps its sign anywhere in the interval with the errors of costs; None if that is not known."""
        return None if self.with_costs is None else self.with_costs[0] > 0 or self.with_costs[1] < 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = {
            "base": self.base,
            "here": self.here,
            "difference": self.difference,
            "relative": self.relative,
            "interval": self.interval,
            "relative_interval": self.relative_interval,
            "verdict": self.verdict,
            "sure": self.sure,
        }
        costs = {"with_costs": self.with_costs, "holds_with_costs": self.holds_with_costs}
        return found | (costs if self.with_costs is not None else {})


def judged(
    base: Sequence[Mapping[str, float | None]],
    here: Sequence[Mapping[str, float | None]],
    pairing: Pairing,
    drawn: bool,
) -> list[Judged]:
    """Every figure that all runs of either side have, judged. ``drawn`` says whether seeds change the requests."""
    tested = (
        _tested(figure, [run[name] for run in base], [run[name] for run in here], pairing, drawn)
        for name, figure in BY_NAME.items()
    )
    return _corrected([each for each in tested if each.base is not None or each.here is not None])


def _tested(
    figure: ComparedFigure,
    base: Sequence[float | None],
    here: Sequence[float | None],
    pairing: Pairing,
    drawn: bool,
) -> Judged:
    """The figure with its interval and probability; a setting is known without."""
    one, other = ([value for value in side if value is not None] for side in (base, here))
    if len(one) < len(base) or len(other) < len(here):
        means = [None if len(own) < len(side) else _mean(own) for own, side in ((one, base), (other, here))]
        return Judged(figure.name, means[0], means[1])
    first = Judged(figure.name, _mean(one), _mean(other))
    if figure.setting:
        return replace(first, p=0.0 if first.difference else 1.0, interval=(first.difference or 0.0,) * 2)
    if pairing == "single":
        return first
    if pairing == "paired":
        return _paired(first, [b - a for a, b in zip(one, other, strict=True)], drawn)
    return _welch(first, one, other, drawn)


def _paired(first: Judged, differences: list[float], drawn: bool) -> Judged:
    n, square = len(differences), spread(differences)
    if _equal(first, differences) or square == 0:
        return _constant(first, n, drawn)
    return _with_error(first, square, n - 1)


def _welch(first: Judged, one: list[float], other: list[float], drawn: bool) -> Judged:
    squares = spread(one), spread(other)
    if sum(squares) == 0:
        return _constant(first, min(len(one), len(other)), drawn)
    return _with_error(first, sum(squares), welch_freedom(squares, (len(one), len(other))))


def _with_error(first: Judged, square: float, freedom: float) -> Judged:
    assert first.difference is not None
    half, t = half_width(square, freedom, CONFIDENCE), first.difference / square**0.5
    return replace(first, interval=(first.difference - half, first.difference + half), p=two_sided(t, freedom))


def _equal(first: Judged, differences: Sequence[float]) -> bool:
    size = max(abs(first.base or 0.0), abs(first.here or 0.0))
    return all(abs(each) <= _ROUNDING * size for each in differences)


def _constant(first: Judged, n: int, drawn: bool) -> Judged:
    """A difference that is the same with every seed. If seeds change the requests, that may be chance, as for small
    counts: then the probability is that of a sign test. If they do not, the difference is exact."""
    assert first.difference is not None
    if _equal(first, [first.difference]):
        return replace(first, here=first.base, interval=(0.0, 0.0), p=1.0)
    return replace(first, interval=(first.difference, first.difference), p=2.0 ** (1 - n) if drawn else 0.0)


def _corrected(found: Sequence[Judged]) -> list[Judged]:
    """With verdicts, by Holm's correction over all figures that differ with any seed."""
    tested = [each for each in found if each.p is not None and each.interval != (0.0, 0.0)]
    family = sorted((each for each in tested if not BY_NAME[each.name].setting), key=lambda each: each.p or 0.0)
    adjusted, highest = {each.name: 0.0 for each in tested}, 0.0
    for place, each in enumerate(family):
        highest = max(highest, min(1.0, (len(family) - place) * (each.p or 0.0)))
        adjusted[each.name] = highest
    return [_with_verdict(each, adjusted.get(each.name, 1.0)) for each in found]


def _with_verdict(each: Judged, chance: float) -> Judged:
    if each.p is None or each.difference is None:
        return each
    if chance > 1 - CONFIDENCE:
        return replace(each, verdict="no clear difference", sure=1 - chance)
    if each.relative is not None and abs(each.relative) < RELEVANT:
        return replace(each, verdict="too small to matter", sure=1 - chance)
    return replace(each, verdict=_direction(BY_NAME[each.name], each.difference), sure=1 - chance)


def _direction(figure: ComparedFigure, difference: float) -> Verdict:
    way: Literal["higher", "lower"] = "higher" if difference > 0 else "lower"
    if figure.better == "neither":
        return way
    return "better" if way == figure.better else "worse"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
