"""Fleets of a given number of GPUs, made of kinds of engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from studies.capacity import Candidate
from studies.layouts import Kind, Pool

_MORE_PREFILL = (1.0, 1.25, 1.6)  # factors on the balanced share of prefill GPUs, for shorter queues; chosen
_BEST = 5  # kinds of engines of each role that are combined


def alike(kinds: Sequence[Kind], gpus: int) -> Iterator[Candidate]:
    """As many engines of one kind as fit."""
    for kind in kinds:
        count = gpus // kind.gpus
        if count:
            yield Candidate(
                f"{count} x ({kind.name})", fleet_of(kind.times(count), kind, count), count * kind.per_second
            )


def apart(prefill: Sequence[Kind], answering: Sequence[Kind], gpus: int) -> Iterator[Candidate]:
    """Prefill on engines of one kind, decode on another, in several proportions."""
    for one in front(prefill):
        for other in sorted(answering, key=lambda kind: (-kind.per_gpu, kind.name))[:_BEST]:
            for prefills, answers in splits(one, other, gpus):
                pools = one.times(prefills) + other.times(answers)
                name = f"{prefills} x ({one.name}) to {answers} x ({other.name})"
                estimate = min(prefills * one.per_second, answers * other.per_second)
                yield Candidate(name, fleet_of(pools, other, answers), estimate)


def splits(one: Kind, other: Kind, gpus: int) -> list[tuple[int, int]]:
    """Engines of each side: balanced, and with more of the first."""

    def carried(prefills: int) -> float:
        return min(prefills * one.per_second, (gpus - prefills * one.gpus) // other.gpus * other.per_second)

    balanced = max(range(1, gpus // one.gpus + 1), key=carried)
    counts = {round(balanced * more) for more in _MORE_PREFILL}
    pairs = [(count, (gpus - count * one.gpus) // other.gpus) for count in sorted(counts)]
    return [(prefills, answers) for prefills, answers in pairs if answers > 0]


def front(prefill: Sequence[Kind]) -> list[Kind]:
    """The best kinds of the Pareto front of prompts per GPU and latency of one prompt."""
    chosen: list[Kind] = []
    for kind in sorted(prefill, key=lambda each: (-each.per_gpu, each.name)):
        if not chosen or kind.alone < chosen[-1].alone:
            chosen.append(kind)
    return chosen[:_BEST]


def fleet_of(pools: Sequence[Pool], answering: Kind, units: int) -> dict[str, Any]:
    """A fleet in the form of a scenario."""
    fleet: dict[str, Any] = {"pools": list(pools), "router": "least-outstanding"}
    if any(pool["role"] == "prefill" for pool in pools):
        fleet["transfer"] = {"first_token": "prefill"}
    if answering.micro_batches:
        fleet["afd"] = {"units": units, "micro_batches": answering.micro_batches}
    return fleet
