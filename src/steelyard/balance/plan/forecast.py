"""Predicts what a given plan takes for given trajectories."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from steelyard.balance.plan.buckets import by_speed, classes_of, cuts_of
from steelyard.balance.plan.makespan import makespans
from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.search import StageFactors
from steelyard.balance.plan.world import Bucket, Plan, TrainOption, World, rounded


def predicted(world: World, plan: Plan, measured: Measured, factors: StageFactors | None = None) -> Plan:
    """The same plan with stage times predicted for these trajectories."""
    factors = factors or StageFactors()
    train = rounded(world.train_seconds(plan.training, measured.context) * factors.train)
    rollout = rounded(rollout_seconds(world, plan.buckets, measured) * factors.rollout)
    step = world.step_seconds(train, rollout, plan.training, plan.buckets)
    return replace(plan, train=train, rollout=rollout, step=step, why="", runner_up=None)


def simple(world: World, option: TrainOption, tp: int, measured: Measured) -> Plan | None:
    """A training layout, with replicas of one degree on all other GPUs; None if there are too few of them."""
    replicas = world.rollout_gpus(option) // tp
    if not replicas:
        return None
    plan = Plan(option, (Bucket(tp, replicas, int(measured.generated.max())),), 0.0, 0.0, 0.0)
    return predicted(world, plan, measured)


def rollout_seconds(world: World, buckets: tuple[Bucket, ...], measured: Measured) -> float:
    """The makespan of a batch on buckets. If the router goes by length, buckets get the best ranges of lengths, the
    longest on the fastest; if not, all replicas get equally many trajectories of all lengths."""
    classes = classes_of(world, measured)
    cuts = cuts_of(len(classes), world.by_length)
    last, first = np.tril_indices(len(cuts), -1)
    below = np.concatenate([[0.0], np.cumsum(classes.count)])[cuts]
    replicas = sum(bucket.replicas for bucket in buckets)
    best = np.where(cuts > 0, inf if world.by_length else 0.0, 0.0)
    order = {tp: place for place, tp in enumerate(by_speed(world))}
    for bucket in sorted(buckets, key=lambda each: (order[each.tp], each.upto)):
        load = world.batches_at_once * (below[last] - below[first]) / (bucket.replicas if world.by_length else replicas)
        table = np.full((len(cuts), len(cuts)), inf)
        model = world.replicas[bucket.tp]
        table[first, last] = (
            makespans(model, classes, load, cuts[first], cuts[last], world.sticky) / world.batches_at_once
        )
        reached = np.maximum(best[:, None], table).min(axis=0)
        best = np.minimum(best, reached) if world.by_length else np.maximum(best, np.where(cuts > 0, reached, 0.0))
    return float(best[-1])
