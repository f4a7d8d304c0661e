"""The best split of a fleet's GPUs between its pools: prefill to decode, attention to FFN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from steelyard.errors import UserError
from steelyard.scenario import PoolSpec, Scenario
from steelyard.search.capacity import largest_rate
from steelyard.search.limits import check_limits
from steelyard.search.loads import Load
from steelyard.sim.setup import layout_of, set_up
from steelyard.sim.workers import as_completed

_MOST_SPLITS = 500  # a second or so each


@dataclass(frozen=True)
class PoolSplit:
    """Replicas of each pool, and the largest rate that they carry; or why they cannot work."""

    replicas: tuple[int, ...]  # in the order of the scenario's pools
    rate: float = 0.0
    output_tokens_per_s: float = 0.0
    refused: str = ""


@dataclass(frozen=True)
class Ratio:
    """Every split of a fleet's GPUs, the best first."""

    pools: tuple[str, ...]
    gpus: int
    splits: tuple[PoolSplit, ...]

    @property
    def best(self) -> PoolSplit:
        """The split that carries most."""
        return self.splits[0]


def best_ratio(scenario: Scenario, workers: int = 0, progress: Callable[[int, int], None] | None = None) -> Ratio:
    """The rate of every split of the scenario's GPUs between its pools. Engines keep their layouts."""
    check_limits(scenario)
    Load(scenario)
    pools = scenario.fleet.pools
    _check_pools(scenario)
    splits = list(_splits(scenario))
    if len(splits) > _MOST_SPLITS:
        raise UserError(
            f"{scenario.source}: fleet.pools: {len(splits):,} splits of the same GPUs; at most {_MOST_SPLITS} are "
            "tried: give larger engines, or fewer GPUs"
        )
    found: dict[int, PoolSplit] = {}
    measure = partial(_measured, scenario)
    ends = as_completed(measure, splits, workers) if workers else enumerate(map(measure, splits))
    for done, (place, split) in enumerate(ends, 1):
        found[place] = split
        if progress is not None:
            progress(done, len(splits))
    ranked = sorted((found[i] for i in range(len(splits))), key=lambda each: -each.rate)
    if all(each.refused for each in ranked):
        raise UserError(f"no split of the GPUs can work; the first of {len(splits)}: {ranked[0].refused}")
    return Ratio(tuple(pool.name for pool in pools), sum(map(_gpus, pools)), tuple(ranked))


def _gpus(pool: PoolSpec) -> int:
    return pool.replicas * layout_of(pool).gpus


def _check_pools(scenario: Scenario) -> None:
    """One pool of each role, and more than one role."""
    roles = [pool.role for pool in scenario.fleet.pools]
    if len(roles) < 2 or len(set(roles)) < len(roles):
        raise UserError(
            f"{scenario.source}: fleet.pools: --ratio needs one pool of each role, prefill and decode, or attention "
            f"and ffn (found {', '.join(roles)})"
        )
    for i, pool in enumerate(scenario.fleet.pools):
        if pool.autoscale is not None:
            raise UserError(f"{scenario.source}: fleet.pools[{i}].autoscale: --ratio needs a fixed number of replicas")


def _splits(scenario: Scenario) -> Iterator[tuple[int, ...]]:
    """All numbers of replicas with as many GPUs in all, at least one of each pool. Attention and FFN replicas are
    multiples of their units."""
    fleet = scenario.fleet
    steps = [fleet.afd.units if pool.role in ("attention", "ffn") else 1 for pool in fleet.pools]
    sizes = [layout_of(pool).gpus * step for pool, step in zip(fleet.pools, steps, strict=True)]
    for counts in _sums(sum(map(_gpus, fleet.pools)), sizes):
        yield tuple(count * step for count, step in zip(counts, steps, strict=True))


def _sums(total: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write a total as a sum of positive multiples of sizes."""
    first, *rest = sizes
    if not rest:
        if total >= first and total % first == 0:
            yield (total // first,)
        return
    for count in range(1, total // first + 1):
        for others in _sums(total - count * first, rest):
            yield (count, *others)


def _measured(scenario: Scenario, replicas: tuple[int, ...]) -> PoolSplit:
    written = scenario.fleet.model_dump(exclude_unset=True)
    for pool, count in zip(written["pools"], replicas, strict=True):
        pool["replicas"] = count
    try:
        changed = scenario.replace(fleet=written)
        found = largest_rate(set_up(changed), Load(changed))
    except UserError as error:
        return PoolSplit(replicas, refused="; ".join(error.args))
    tokens = 0 if found.outcome is None else found.outcome.output_tokens
    return PoolSplit(replicas, found.rate, found.rate * tokens)
