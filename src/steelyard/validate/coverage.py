"""Whether stated errors and intervals hold what was measured, by where a time comes from.

Runs: a run belongs to the provenance that most of its step time has, and its figures lie in their intervals or not.
Operators: a single answer lies within 1.645 standard errors of its class or not, on points that no source was given;
transferred ones on NVIDIA's tables. Few runs are of other classes than measured and interpolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import log1p

from steelyard.cost.bundle import Bundle
from steelyard.cost.errors import ERRORS
from steelyard.cost.heldout import held_out_by_class
from steelyard.cost.source import PROVENANCES, Provenance
from steelyard.hardware import Gpu
from steelyard.validate.compare import WorkloadComparison
from steelyard.validate.transfer import transfer_errors

_WIDTH = 1.645  # standard errors to either side, for the stated share
_SHAPES = 60  # of a table; chosen for the time they take
_FAMILIES = {"matrices": "gemm", "decodes": "attention", "prompts": "attention", "experts": "experts"}


@dataclass(frozen=True)
class Coverage:
    """Of what belongs to one class, how much lies inside."""

    kind: str
    inside: int
    of: int

    @property
    def share(self) -> float:
        """The share inside."""
        return self.inside / self.of


def of_runs(compared: Iterable[WorkloadComparison]) -> list[Coverage]:
    """Figures of runs."""
    return _counted((class_of(each.provenance), inside) for each in compared for inside in each.stated)


def of_operators(bundle: Bundle, gpu: Gpu, sibling: str = "h100") -> list[Coverage]:
    """Single answers: of the profile and the roofline on held-out points, of a transfer on a sibling's tables."""

    def all_errors() -> Iterator[tuple[str, bool]]:
        for family, kind, error in held_out_by_class(bundle, gpu):
            yield kind, _is_inside(kind, family, error)
        found = transfer_errors(sibling, _SHAPES)
        for name, errors in (found[2] if found is not None else {}).items():
            family = _FAMILIES[name.split(",")[0]]
            for error in errors:
                yield "transferred", _is_inside("transferred", family, error)

    return _counted(all_errors())


def class_of(shares: Mapping[str, float]) -> str:
    """The provenance of most of the time."""
    return max(shares, key=lambda kind: shares[kind])


def _is_inside(kind: Provenance, family: str, error: float) -> bool:
    return abs(log1p(error)) <= _WIDTH * log1p(ERRORS[kind][family])


def _counted(judged: Iterable[tuple[str, bool]]) -> list[Coverage]:
    found: dict[str, list[bool]] = {}
    for kind, inside in judged:
        found.setdefault(kind, []).append(inside)
    return [Coverage(kind, sum(found[kind]), len(found[kind])) for kind in PROVENANCES if kind in found]
