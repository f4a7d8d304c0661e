"""What planners are told of a post-training scenario, and the plan that is recommended for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from steelyard.balance.beginnings import ByPrompt
from steelyard.balance.core import RolloutCore
from steelyard.balance.estimate import SuffixBackoff
from steelyard.balance.plan import Bucket, Measured, Plan, ReplicaModel, Simulated, State, TrainOption, World
from steelyard.balance.plan.world import Mode
from steelyard.balance.route.cost_aware import CostAware
from steelyard.errors import UserError
from steelyard.model import Layout
from steelyard.posttrain.engines import EngineKind, engine_kinds
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import PosttrainSetup, serving, set_up_posttrain, train_settings, weight_seconds
from steelyard.posttrain.sync import Rollouts
from steelyard.posttrain.training import (
    Packing,
    TrainingCost,
    TrainLayout,
    compile_training,
    refusal,
)
from steelyard.scenario.posttrain import BucketSpec, PosttrainScenario
from steelyard.workload.columns import Ints
from steelyard.workload.trajectories import Trajectory

DEGREES = (1, 2, 4, 8)
_STAGES = (1, 2, 4, 5, 8)
_MICRO_BATCHES = (16384, 40960)
_TAUGHT = 512  # trajectories that the estimator has learnt when a plan is simulated


def recommended(scenario: PosttrainScenario) -> Plan:
    """The best split of a scenario's GPUs for the trajectories of its first step, by simulating a shortlist."""
    setup = set_up_posttrain(_of_every_degree(scenario))
    training = Training(setup, scenario.gpus)
    world = world_of(setup, training, scenario.gpus, planner_mode(scenario))
    batch = list(setup.tasks.step(0))
    measured = Measured.of(batch, scenario.trajectories.group)

    def simulate(plan: Plan, _: State) -> float:
        train = training.seconds(plan.training, measured.context, "best-fit")
        rollout = rolled_out(setup, plan, batch, batch[:_TAUGHT])
        return world.together(train, rollout) + world.sync(plan.training, plan.buckets)

    plan = Simulated(world, simulate).plan(State(0, measured))
    assert plan is not None, "there was none before it"
    return plan


def planner_mode(scenario: PosttrainScenario) -> Mode:
    """A scenario's mode in the planner's terms."""
    if scenario.mode == "colocated":
        return "colocated"
    return "split" if scenario.mode == "split" else "overlapped"


def _of_every_degree(scenario: PosttrainScenario) -> PosttrainScenario:
    """The same with engines of every degree that the model can have on its GPUs, to choose from."""
    found, refused = [], None
    for tp in DEGREES:
        try:
            engine_kinds(serving(scenario), [tp])
        except UserError as error:  # heads that cannot be split so, weights that do not fit, a node that is too small
            refused = error
        else:
            found.append(BucketSpec(tp=tp, replicas=1))
    if not found:
        assert refused is not None
        raise refused
    return scenario.model_copy(update={"rollout": tuple(found)})


def replica_model(kind: EngineKind) -> ReplicaModel:
    """An engine in the planner's terms."""
    limits, mixed = kind.limits, kind.cost.mixed(64, 64 * 2048, 2048, [(1024, 2048)])
    return ReplicaModel(
        kind.speed(), limits.max_num_seqs, limits.blocks * limits.block_size, mixed.prepare + mixed.launch
    )


def world_of(setup: PosttrainSetup, training: Training, gpus: int, mode: Mode = "overlapped") -> World:
    """What a planner is told of all this."""
    models = {tp: replica_model(kind) for tp, kind in setup.kinds.items()}
    return World(gpus, mode, models, list(training.layouts), training.seconds, training.sync)


class Training:
    """Training layouts that fit, compiled when first asked for."""

    def __init__(self, setup: PosttrainSetup, gpus: int) -> None:
        self._setup, self._settings = setup, train_settings(setup.scenario)
        self.layouts = {
            TrainOption(
                f"{layout} {layout.micro_batch_tokens // 1024}k", layout.gpus, layout.pp, layout.dp, layout.budget
            ): layout
            for layout in self._fitting(gpus)
        }
        self._compiled = cache(self._compile)

    def seconds(self, option: TrainOption, lengths: Ints, packing: Packing = "even") -> float:
        """A step."""
        return self._compiled(option, packing).step(lengths).seconds

    def sync(self, option: TrainOption, buckets: Sequence[Bucket]) -> float:
        """New weights to all engines, and what goes before training where they share its GPUs."""
        setup, engines = self._setup, [Rollouts(bucket.replicas, Layout(tp=bucket.tp)) for bucket in buckets]
        return sum(weight_seconds(setup.scenario, setup.model, setup.topology, self.layouts[option], engines))

    def _fitting(self, gpus: int) -> Iterator[TrainLayout]:
        setup, settings = self._setup, self._settings
        for tp in DEGREES:
            for pp in _STAGES:
                for dp in (2**power for power in range((gpus // (tp * pp)).bit_length())):
                    for zero in (1, 3) if tp * pp == 1 else (1,):
                        for tokens in _MICRO_BATCHES:
                            layout = TrainLayout(tp, pp, dp, zero=zero, recompute="full", micro_batch_tokens=tokens)
                            if refusal(setup.model, setup.gpu, setup.topology, layout, settings) is None:
                                yield layout

    def _compile(self, option: TrainOption, packing: Packing) -> TrainingCost:
        setup, settings = self._setup, replace(self._settings, packing=packing)
        return compile_training(setup.model, setup.gpu, setup.topology, self.layouts[option], settings)


def rolled_out(
    setup: PosttrainSetup, plan: Plan, trajectories: Sequence[Trajectory], known: Sequence[Trajectory]
) -> float:
    """Seconds until the last of some trajectories has ended on a plan's replicas; ``known`` were learnt from before."""
    estimator, beginnings = SuffixBackoff(), ByPrompt()
    for each in known:
        estimator.learn(each)
        beginnings.learn(each)
    speeds = {tp: kind.speed() for tp, kind in setup.kinds.items()}
    core = RolloutCore(CostAware(speeds), estimator, beginnings)
    stage = RolloutStage(core, setup.kinds, setup.scenario.engine.block_size)
    for number, tp in enumerate(tp for tp, replicas in plan.replicas.items() for _ in range(replicas)):
        stage.add(number, tp, 0.0)
    stage.begin(trajectories, 0.0, 0)
    stage.run()
    return max(attempt.ended for attempt in stage.done)
