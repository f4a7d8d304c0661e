"""Upper bounds on the requests that an engine can serve within limits, from its compiled costs. No simulation.

A bound is sound: no run of `simulate` that meets the limits is above it. It rests on three facts.

- The GPU runs one step at a time. A step with n decodes and c prompt tokens takes at least d(n, c) seconds, whatever
  else is in it: the least entry of the tables for that many tokens or more.
- A request that meets a limit of t seconds per token was in steps of t seconds on average.
- A request that meets its limits has ended by the last arrival plus those limits.

Let steps be of any kinds (n, c), in any proportion. They serve x requests per second, of p prompt tokens and o decodes
each, only if for all m >= 0, l >= 0 and 0 <= s <= 1

    x <= max over (n, c) of ((1 - s) n / o + s c / p + l n (t - d)) / d

(the dual of a linear program). Any choice of s and l gives a bound; the least of many is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from steelyard.cost import RESTED, CompiledCost, SpeculativeCost
from steelyard.records import Floats, Ints
from steelyard.scenario.fleet import Role
from steelyard.search.demand import ServiceDemand
from steelyard.sim.setup import Setup

_RATIO = 1.06  # of neighbouring numbers of decodes, and of prompt tokens, that are looked at
_WEIGHTS = np.linspace(0.0, 1.0, 21)  # of prompts among what a step gets done
_PRICES = np.concatenate([[0.0], np.geomspace(0.01, 1000.0, 40)])  # of time per token, over the mean one


@dataclass(frozen=True)
class EngineBound:
    """The most requests per second of one engine of a pool, by its part of a request."""

    setup: Setup
    role: Role

    def requests_per_second(self, demand: ServiceDemand) -> float:
        """Of requests as ``demand`` has them that keep to its limit per token."""
        if self.role == "prefill":
            return self._prompts(demand)
        prompt = demand.prompt if self.role in ("serve", "attention") else 0.0
        return self._answers(demand, prompt)

    def _prompts(self, demand: ServiceDemand) -> float:
        sizes = _sizes(self._most_tokens)[1:]
        least = self._without_attention[sizes[:-1]]
        per_token = float(np.min(least / np.maximum(sizes[1:] - 1, 1)))
        return inf if per_token <= 0 or demand.prompt <= 0 else 1 / (per_token * demand.prompt)

    def _answers(self, demand: ServiceDemand, prompt: float) -> float:
        drafts = 1 + self.setup.engine.drafts
        decodes = demand.output / drafts
        if decodes <= 0:
            return inf if prompt <= 0 else self._prompts(demand)
        counts = _sizes(self._most_decodes(demand))
        chunks = _sizes(self._most_tokens) if prompt > 0 else np.array([0, 1])
        low_n, high_n = counts[:-1, None].astype(float), (counts[1:] - 1)[:, None].astype(float)
        low_c, high_c = chunks[:-1][None, :], (chunks[1:] - 1)[None, :].astype(float)
        tokens = np.minimum(counts[:-1, None] + low_c, self._most_tokens)
        seconds = self._without_attention[tokens] + self._attention(counts[:-1], demand)[:, None]
        if self.setup.unit is not None:
            seconds = np.maximum(seconds, self._unit_decodes(counts[:-1], demand)[:, None])
        possible = (counts[:-1, None] + low_c <= self._most_tokens) & (seconds > 0)
        seconds = np.where(possible, seconds, 1.0)
        slack = demand.shown_late + (1 - RESTED) * float(seconds.max())
        tpot = (demand.tpot + slack / demand.output) * drafts
        found = inf
        for weight in _WEIGHTS if prompt > 0 else _WEIGHTS[:1]:
            done = (1 - weight) * high_n / decodes + (weight * high_c / prompt if prompt > 0 else 0.0)
            for price in _PRICES if tpot < inf else _PRICES[:1]:
                cost = price / (decodes * tpot) if tpot < inf else 0.0
                gain = (
                    np.zeros_like(seconds)
                    if not price
                    else cost * np.maximum(high_n * (tpot / seconds - 1), low_n * (tpot / seconds - 1))
                )
                value = np.where(possible, done / seconds + gain, -inf)
                found = min(found, float(value.max()))
        return found

    def _most_decodes(self, demand: ServiceDemand) -> int:
        limits, ranks = self.setup.limits, self.setup.layout.dp
        cached = limits.room
        return ranks * max(1, min(limits.max_num_seqs, cached // max(1, demand.shortest)))

    @cached_property
    def _most_tokens(self) -> int:
        return self.setup.limits.max_num_batched_tokens * self.setup.layout.dp

    @cached_property
    def _without_attention(self) -> Floats:
        """The least seconds of a step, by its tokens over all ranks."""
        unit, stages = self.setup.unit, self.setup.stages
        if unit is not None:
            sizes = _sizes(self._most_tokens)
            least = np.array([unit.least(max(1, int(size))) for size in sizes[:-1]])
            least = np.minimum.accumulate(least[::-1])[::-1]
            place = np.searchsorted(sizes, np.arange(self._most_tokens + 1), side="right") - 1
            return least[np.minimum(place, len(least) - 1)]
        tables = [each.least() for each in stages or (_plain(self.setup.cost),)]
        slowest: Floats = np.max(np.array([table[: self._most_tokens + 1] for table in tables]), axis=0)
        return slowest

    def _attention(self, counts: Ints, demand: ServiceDemand) -> Floats:
        """The least seconds of attention of so many decodes, none of which has a shorter context than the shortest."""
        setup, ranks = self.setup, self.setup.layout.dp
        if demand.shared or setup.stages or setup.unit is not None:
            return np.zeros(len(counts))
        cost = _plain(setup.cost)
        on_one = -(-counts // ranks)
        found = np.array([cost.least_decode_attention(int(n), int(n) * demand.shortest) if n else 0.0 for n in on_one])
        return np.asarray(np.minimum.accumulate(found[::-1])[::-1])

    def _unit_decodes(self, counts: Ints, demand: ServiceDemand) -> Floats:
        """The least seconds of a unit's step with so many decodes or more."""
        unit = self.setup.unit
        assert unit is not None
        found = np.zeros(len(counts))
        for i, n in enumerate(counts.tolist()):
            if n:
                a, b, _ = unit.decode_line(n, n * demand.shortest, demand.shortest)
                found[i] = a + b * n * demand.shortest
        return np.asarray(np.minimum.accumulate(found[::-1])[::-1])


def _plain(cost: CompiledCost | SpeculativeCost) -> CompiledCost:
    return cost.target if isinstance(cost, SpeculativeCost) else cost


def _sizes(most: int) -> Ints:
    """Numbers from 0 to ``most``, then ``most + 1``, ever further apart."""
    found = [0]
    while found[-1] <= most:
        found.append(max(found[-1] + 1, int(found[-1] * _RATIO)))
    return np.array([*(each for each in found if each <= most), most + 1])
