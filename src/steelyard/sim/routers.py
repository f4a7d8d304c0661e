"""Builds the router of a scenario: by model, then by pool, then among replicas."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.balance.route import Router
from steelyard.balance.route.serving import ByLoad, ByModel, ByWeight, RoutedPool, RouterSettings, serving_router
from steelyard.sim.setup import FleetSetup, Setup


def router_before(setup: FleetSetup, pools: Sequence[Setup], name: str, seed: int) -> Router:
    """The router of these pools, whose replicas it numbers from 0. ``name`` is the policy among replicas."""
    own: dict[str, list[Setup]] = {}
    numbers: dict[str, list[int]] = {}
    first = 0
    for each in pools:
        own.setdefault(each.serves, []).append(each)
        numbers.setdefault(each.serves, []).extend(range(first, first + each.ranks))
        first += each.ranks
    parts = {model: RoutedPool(numbers[model], _among(setup, own[model], name, seed)) for model in own}
    return ByModel(parts) if len(parts) > 1 else next(iter(parts.values())).router


def _among(setup: FleetSetup, pools: Sequence[Setup], name: str, seed: int) -> Router:
    """The router among pools of one model."""
    wanted = setup.scenario.fleet.pool_router
    if wanted is None or len(pools) == 1:
        return serving_router(name, sum(each.ranks for each in pools), seed, _settings(setup, pools))
    parts = []
    first = 0
    for each in pools:
        router = serving_router(name, each.ranks, seed, _settings(setup, [each]))
        parts.append(RoutedPool(range(first, first + each.ranks), router))
        first += each.ranks
    weights = [_weight(each) for each in pools]
    return ByWeight(parts, weights) if wanted == "weighted" else ByLoad(parts, weights)


def _weight(each: Setup) -> float:
    """The default weight of a pool: memory bandwidth for decode, arithmetic for prefill."""
    if each.pool.weight is not None:
        return each.pool.weight
    gpu = each.gpu
    return each.gpus * (gpu.peak(each.model.compute) if each.pool.role == "prefill" else gpu.memory_bandwidth)


def _settings(setup: FleetSetup, pools: Sequence[Setup]) -> RouterSettings:
    """Settings of the router of these pools."""
    limits = pools[0].limits
    return RouterSettings(limits.block_size, limits.blocks, ttft=setup.scenario.slo.ttft or 1.0)
