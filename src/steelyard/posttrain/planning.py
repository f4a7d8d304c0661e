"""Makes the input of planners from a post-training scenario, and applies a plan to a scenario."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import product

import numpy as np

from steelyard.balance.plan import (
    Bucket,
    Plan,
    ReplicaModel,
    TrainOption,
    World,
)
from steelyard.balance.plan.by_name import PlannerSettings
from steelyard.balance.plan.world import Mode, rounded
from steelyard.model import Layout
from steelyard.posttrain.engines import EngineKind
from steelyard.posttrain.setup import DEGREES, Job, PosttrainSetup, train_settings, weight_seconds
from steelyard.posttrain.sync import RolloutEngines
from steelyard.posttrain.training import Packing, TrainLayout, TrainSettings
from steelyard.records import Ints
from steelyard.scenario.posttrain import BucketSpec, PosttrainScenario, TrainingSpec
from steelyard.scenario.rollouts import TrajectorySpec

# A coarse grid, since each layout is timed for every split of the GPUs; see `colocated.py` for a finer one.
_STAGES = (1, 2, 4, 5, 8)
_MICRO_BATCHES = (16384, 40960)  # tokens
_PRUNING = ("libra", "libra-published")  # planners that prune layouts by tensor-parallel exchange
_RANKS = 12  # numbers of data-parallel ranks to try if any number works
_BY_LENGTH = (
    "length-predicted",
    "c-mlfq",
    "heddle",
    "cost-aware",
)  # they send long ones to fast engines


def planner_mode(scenario: PosttrainScenario) -> Mode:
    """A scenario's mode in the planner's terms."""
    if scenario.mode == "colocated":
        return "colocated"
    return "split" if scenario.mode == "split" else "overlapped"


def replica_model(kind: EngineKind) -> ReplicaModel:
    """An engine in the planner's terms."""
    limits = kind.limits
    others = min(64, limits.max_num_seqs - 1)
    chunk = min(1024, limits.max_num_batched_tokens - others)
    mixed = kind.cost.mixed(others, others * 2048, 2048, [(chunk, 2048)])
    return ReplicaModel(kind.speed(), limits.max_num_seqs, limits.room, mixed.prepare + mixed.launch)


def world_of(setup: PosttrainSetup, training: Training, gpus: int, mode: Mode = "overlapped") -> World:
    """The world of a scenario, for a planner."""
    models = {tp: replica_model(kind) for tp, kind in setup.kinds.items()}
    return World(
        gpus,
        mode,
        models,
        list(training.layouts),
        training.seconds,
        training.sync,
        batches_at_once=max(1, setup.scenario.staleness_bound),  # when neither stage waits for the other
        by_length=setup.scenario.router in _BY_LENGTH,
    )


def planner_settings(
    scenario: PosttrainScenario, world: World, training: Training, written: Plan
) -> PlannerSettings | None:
    """The planner that changes the layout during a run, in plain numbers; None if none does."""
    if scenario.planner == "given" or scenario.planner == "static-best":
        return None
    return PlannerSettings(
        scenario.planner,
        world.gpus,
        world.mode,
        tuple(sorted(world.replicas.items())),
        tuple(world.options),
        written,
        world.batches_at_once,
        world.by_length,
        tuple(map(training.exchange, world.options)) if scenario.planner in _PRUNING else (),
    )


def option_of(layout: TrainLayout) -> TrainOption:
    """A layout in the planner's terms."""
    name = f"{layout} {layout.micro_batch_tokens // 1024}k"
    return TrainOption(name, layout.gpus, layout.pp, layout.dp, layout.budget)


def longest_sequence(setup: PosttrainSetup) -> int:
    """An upper bound of the tokens of a trajectory. Every layout must be able to train on as many."""
    asked = setup.scenario.trajectories
    if isinstance(asked, TrajectorySpec):
        return asked.budget.context
    return min(kind.limits.max_model_len for kind in setup.kinds.values())


def buckets_of(scenario: PosttrainScenario) -> tuple[Bucket, ...]:
    """The scenario's rollout engines in the planner's terms, each for all lengths."""
    return tuple(Bucket(bucket.tp, bucket.replicas, 0) for bucket in sorted(scenario.rollout, key=lambda b: b.tp))


def as_written(setup: PosttrainSetup, training: Training, plan: Plan) -> PosttrainSetup:
    """The run with this plan in force in all steps."""
    layout = training.layouts[plan.training]
    spec = {name: value for name, value in asdict(layout).items() if name in TrainingSpec.model_fields}
    engines = tuple(BucketSpec(tp=tp, replicas=replicas) for tp, replicas in plan.replicas.items())
    scenario = setup.scenario.replace(rollout=engines, training=setup.scenario.training.replace(**spec))
    return replace(setup, scenario=scenario, job=training.job(plan.training, plan.buckets))


class Training:
    """Training layouts that fit."""

    def __init__(self, setup: PosttrainSetup, gpus: int) -> None:
        self._setup, self._settings = setup, train_settings(setup.scenario)
        written = setup.job.cost.layout
        self.written = option_of(written)
        self.layouts = {option_of(layout): layout for layout in self._fitting(gpus)} | {self.written: written}
        self._lent: set[TrainOption] = set()  # layouts with replicas of a pool
        self._packed = cache(self._settings_of)
        self._weights = cache(self._weight_seconds)

    def seconds(self, option: TrainOption, lengths: Ints, packing: Packing = "even") -> float:
        """Seconds of a step."""
        return self._setup.jobs.seconds(self.layouts[option], self._packed(option, packing), lengths)

    def sync(self, option: TrainOption, buckets: Sequence[Bucket]) -> float:
        """Seconds to send new weights to all engines and, if co-located, to free their GPUs before training."""
        return sum(self._weights(option, _engines(buckets)))

    def exchange(self, option: TrainOption) -> float:
        """The share of full micro-batches' time that tensor-parallel ranks spend on exchanges."""
        layout = self.layouts[option]
        if layout.tp == 1:
            return 0.0
        lengths = np.full(layout.dp * self._settings.minibatches, layout.budget)
        split = self._setup.compile(layout, self._packed(option, "even")).step(lengths).split
        return rounded(split.tp / (split.tp + split.forward + split.backward + split.recompute))

    def job(self, option: TrainOption, buckets: Sequence[Bucket]) -> Job:
        """The training job of a layout with these engines, packed as in the scenario."""
        cost = self._setup.compile(self.layouts[option], self._packed(option, self._settings.packing))
        return Job(cost, *self._weights(option, _engines(buckets)))

    def lent(self, layout: TrainLayout) -> TrainOption:
        """A job's layout with lent replicas, whose gradients are weighted by tokens: they need not divide a batch."""
        option = option_of(layout)
        if option not in self.layouts:
            self.layouts[option] = layout
            self._lent.add(option)
        return option

    def _settings_of(self, option: TrainOption, packing: Packing) -> TrainSettings:
        whole = None if option in self._lent else self._settings.batch
        return replace(self._settings, packing=packing, batch=whole)

    def _weight_seconds(self, option: TrainOption, engines: tuple[RolloutEngines, ...]) -> tuple[float, float]:
        setup = self._setup
        return weight_seconds(setup.scenario, setup.model, setup.topology, self.layouts[option], engines)

    def _fitting(self, gpus: int) -> Iterator[TrainLayout]:
        setup, settings, spec = self._setup, self._settings, self._setup.scenario.training
        longest = longest_sequence(setup)
        tokens = sorted({*_MICRO_BATCHES, spec.micro_batch_tokens})
        for tp, pp, cp in product(DEGREES, _STAGES, sorted({1, spec.cp})):
            ranks = _ranks(gpus // (tp * pp * cp), settings.batch)
            budgets = [each for each in tokens if each * cp >= longest]
            for dp, ep, budget in product(ranks, sorted({1, spec.ep}), budgets):
                for zero in (1, 3) if tp * pp == 1 else (1,):
                    layout = TrainLayout(tp, pp, dp, ep, cp, zero, "full", budget)
                    if setup.jobs.fits(layout, settings):
                        yield layout


def _engines(buckets: Sequence[Bucket]) -> tuple[RolloutEngines, ...]:
    return tuple(RolloutEngines(bucket.replicas, Layout(tp=bucket.tp)) for bucket in buckets)


def _ranks(most: int, batch: int | None) -> list[int]:
    """Numbers of data-parallel ranks to try: those that divide the batch, or without a batch a dozen up to ``most``."""
    if batch is None:
        return list(range(most, 0, -max(1, most // _RANKS)))[::-1]
    return [dp for dp in range(1, most + 1) if batch % dp == 0]
