"""The cheapest candidates that carry a given rate: in the order of their price, until enough have been found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from steelyard.search.contest import KEPT, CandidateKey, Contest, Field, RateTrial, Standing
from steelyard.search.outcome import LoadOutcome

_AT_ONCE = 16

Simulate = Callable[[str, Sequence[RateTrial]], Sequence[LoadOutcome]]


def cheapest(contest: Contest, entrants: Field, place: int, simulate: Simulate) -> None:
    """Fill the contest's best lists with the cheapest candidates that carry the rate at ``place``."""
    rate = float(contest.grid.rates[place])
    contest.best = {level: [] for level in contest.levels}
    contest.everyone = {level: {} for level in contest.levels}
    waiting: list[tuple[float, float, CandidateKey]] = []
    for number, group in zip(entrants.numbers, entrants.groups, strict=True):
        sound = group.bound >= rate
        likely = sound & (group.at_best.max(axis=0) >= rate)
        contest.tally.by_bound += int((~sound).sum())
        contest.tally.by_estimate += int((sound & ~likely).sum())
        for row in (likely if not contest.exhaustive else sound).nonzero()[0].tolist():
            waiting.append((float(group.usd_per_hour[row]), -float(group.estimate[row]), CandidateKey(number, row)))
    waiting.sort(key=lambda each: (each[0], each[1], each[2].group, each[2].row))
    for start in range(0, len(waiting), _AT_ONCE):
        if not contest.exhaustive and all(len(found) >= KEPT for found in contest.best.values()):
            return
        some = waiting[start : start + _AT_ONCE]
        contest.tally.simulated += len(some)
        passed = some
        if not contest.exhaustive:
            shorts = simulate("", [RateTrial(entry, place, True) for _, _, entry in some])
            loosest = next(iter(contest.levels.values()))
            passed = [each for each, short in zip(some, shorts, strict=True) if short.meets(loosest, contest.good)]
            contest.tally.by_short += len(some) - len(passed)
        contest.tally.whole += len(passed)
        outcomes = simulate("", [RateTrial(entry, place, False) for _, _, entry in passed])
        for (price, _, entry), outcome in zip(passed, outcomes, strict=True):
            for level, slo in contest.levels.items():
                if outcome.meets(slo, contest.good):
                    contest.everyone[level][entry] = -price
                    if len(contest.best[level]) < KEPT:
                        contest.best[level].append(Standing(entry, place, -price, outcome))
