"""Sets up a post-training scenario: compiles engines, training and weight sync before the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from steelyard.cost import CostSource, HostTerms
from steelyard.cost.profiles import open_profile
from steelyard.errors import UserError, blaming
from steelyard.files.finding import is_file
from steelyard.hardware import Gpu, Topology, find_gpu, topology_of
from steelyard.model import Layout, ModelSpec, weight_bytes
from steelyard.posttrain.engines import EngineKind
from steelyard.posttrain.roles import first_places, merged_blocks
from steelyard.posttrain.sync import Disk, RolloutEngines, broadcast, point_to_point, reshard, sleep, via_disk, wake
from steelyard.posttrain.training import TrainingCost, TrainingJobs, TrainLayout, TrainSettings
from steelyard.posttrain.turns import check_room
from steelyard.scenario.posttrain import PosttrainScenario, TrainingSpec
from steelyard.scenario.rollouts import TrajectorySpec
from steelyard.scenario.tails import ReconfigureSpec
from steelyard.sim.content import digest
from steelyard.sim.models import ServedModel, find_served
from steelyard.sim.prepared import check_engine, prepare
from steelyard.sim.setup import host_terms
from steelyard.sim.sources import Sources, measured_sources
from steelyard.workload.trajectories.tasks import RecordedTasks, Trajectories, trajectories_of

DEGREES = (1, 2, 4, 8)
_MOST_MODELS = 4  # whose training jobs are remembered


@dataclass(frozen=True)
class Job:
    """A training job, and the seconds for its engines to free their GPUs and to get its weights."""

    cost: TrainingCost
    before: float  # seconds that co-located engines take to free their GPUs
    sync: float  # seconds from the end of a training step until engines run with its weights


@dataclass(frozen=True)
class PosttrainSetup:
    """A scenario with its compiled parts."""

    scenario: PosttrainScenario
    model: ModelSpec
    gpu: Gpu
    topology: Topology
    jobs: TrainingJobs
    kinds: Mapping[int, EngineKind]
    job: Job  # of the scenario's layout
    tasks: Trajectories

    @property
    def training(self) -> TrainingCost:
        """The cost of the scenario's training job."""
        return self.job.cost

    def compile(self, layout: TrainLayout, settings: TrainSettings) -> TrainingCost:
        """The cost of training in another layout."""
        return self.jobs.compile(layout, settings)

    def times_from(self, training: TrainingCost) -> dict[str, Any]:
        """The sources of engines' operator times, and the provenance shares of training's, for JSON."""
        engines = {name for kind in self.kinds.values() for name in kind.sources}
        return {"rollout": sorted(engines), "training": dict(training.provenance)}


def set_up_posttrain(scenario: PosttrainScenario, any_degree: bool = False) -> PosttrainSetup:
    """Find model and GPU, compile engines and training. Refuses what cannot work.

    Engines have the scenario's degrees; all degrees if a planner may change them, or with ``any_degree``.
    """
    source = scenario.source
    served = find_served(scenario.model, scenario.base_dir, f"{source}: model")
    model = served.spec
    with blaming(f"{source}: gpu"):
        gpu = find_gpu(scenario.gpu)
    topology = topology_of(gpu, scenario.topology)
    degrees = [bucket.tp for bucket in scenario.rollout]
    host = host_terms(scenario.cost, scenario.base_dir, source)
    wide = [scenario.tail.tp] if isinstance(scenario.tail, ReconfigureSpec) else []
    kinds = {tp: _kind(scenario, served, gpu, tp, host, tp not in degrees) for tp in sorted({*degrees, *wide})}
    tasks = trajectories_of(scenario.trajectories, scenario.seed, scenario.base_dir)
    with blaming(source):
        longest = _longest(scenario, tasks, kinds)
    if any_degree or scenario.planner != "given":
        others = _other_kinds(scenario, served, gpu, degrees, host)
        kinds |= {tp: kind for tp, kind in others.items() if kind.limits.longest() >= longest}
    _check_merges(scenario, topology)
    layout = train_layout(scenario.training)
    jobs = _training_jobs(scenario, model, gpu, topology)
    with blaming(source):
        training = jobs.compile(layout, train_settings(scenario))
        rollouts = [RolloutEngines(bucket.replicas, Layout(tp=bucket.tp)) for bucket in scenario.rollout]
        before, sync = weight_seconds(scenario, model, topology, layout, rollouts)
    return PosttrainSetup(scenario, model, gpu, topology, jobs, kinds, Job(training, before, sync), tasks)


def _check_merges(scenario: PosttrainScenario, topology: Topology) -> None:
    """Refuse a tail policy that would find no engines to merge."""
    if isinstance(scenario.tail, ReconfigureSpec):
        tp, degrees = scenario.tail.tp, [bucket.tp for bucket in scenario.rollout for _ in range(bucket.replicas)]
        places, _ = first_places(degrees, scenario.training.gpus, scenario.gpus, scenario.mode == "colocated")
        if not merged_blocks(places, tp, topology.gpus_per_node):
            raise UserError(
                f"{scenario.source}: tail.tp: no engines of lower degrees have {tp} GPUs of a node together; change "
                "rollout, or give another degree"
            )


def _longest(scenario: PosttrainScenario, tasks: Trajectories, kinds: Mapping[int, EngineKind]) -> int:
    """Tokens that engines of other degrees must have room for: those of the longest trajectory, as far as the engines
    that are written have it. A file's trajectories are known, and refused at once if they are too long for these."""
    if isinstance(tasks, RecordedTasks):
        check_room(tasks.longest, {tp: kind.limits for tp, kind in kinds.items()})
        return tasks.longest.tokens
    asked = scenario.trajectories
    most = asked.budget.context if isinstance(asked, TrajectorySpec) else 0
    return min(most, *(kind.limits.longest() for kind in kinds.values()))


@dataclass(frozen=True)
class _JobsRecipe:
    """All inputs of training jobs, by the digest of their contents."""

    contents: str
    scenario: PosttrainScenario = field(compare=False)
    model: ModelSpec = field(compare=False)
    gpu: Gpu = field(compare=False)
    topology: Topology = field(compare=False)


def _training_jobs(scenario: PosttrainScenario, model: ModelSpec, gpu: Gpu, topology: Topology) -> TrainingJobs:
    """Training jobs of the scenario's model. Scenarios that differ in other things share them."""
    contents = Sources(scenario.cost, scenario.base_dir).contents(gpu)
    return _jobs_of(_JobsRecipe(digest(model, gpu, topology, *contents), scenario, model, gpu, topology))


@lru_cache(_MOST_MODELS)
def _jobs_of(recipe: _JobsRecipe) -> TrainingJobs:
    model, gpu, topology = recipe.model, recipe.gpu, recipe.topology
    return TrainingJobs(model, gpu, topology, _training_sources(recipe.scenario, model, gpu, topology))


def _training_sources(
    scenario: PosttrainScenario, model: ModelSpec, gpu: Gpu, topology: Topology
) -> tuple[CostSource, ...]:
    """The sources of engines, but of the user's profiles only a file of operators: a folder has only the shapes of a
    serving engine."""
    own: tuple[CostSource, ...] = ()
    named = scenario.cost.profile
    if named is not None and is_file(scenario.base_dir / named):
        own = (open_profile(scenario.base_dir / named, gpu, model, Layout()),)
    return (*own, *measured_sources(scenario.cost, gpu, topology))


def _kind(
    scenario: PosttrainScenario, served: ServedModel, gpu: Gpu, tp: int, host: HostTerms, tail: bool = False
) -> EngineKind:
    """Rollout engines of one degree; those of the ``tail`` policy only run for the last trajectories of a step."""
    layout = Layout(tp=tp)
    with blaming(f"{scenario.source}: {'tail' if tail else 'rollout'}.tp"):
        check_engine(served.spec, gpu, layout, scenario.engine)
    with blaming(scenario.source):
        prepared = prepare(
            served.spec,
            gpu,
            layout,
            scenario.engine,
            scenario.cost,
            host=host,
            routing=served.routing,
            topology=topology_of(gpu, scenario.topology),
            base_dir=scenario.base_dir,
        )
    return EngineKind.of(prepared)


def _other_kinds(
    scenario: PosttrainScenario, served: ServedModel, gpu: Gpu, degrees: Sequence[int], host: HostTerms
) -> dict[int, EngineKind]:
    """Engines of all other degrees that are possible on these GPUs."""
    found: dict[int, EngineKind] = {}
    for tp in DEGREES:
        if tp not in degrees and tp <= scenario.gpus:
            with suppress(UserError):  # heads cannot be split, weights do not fit, or the node is too small
                found[tp] = _kind(scenario, served, gpu, tp, host)
    return found


def train_layout(spec: TrainingSpec) -> TrainLayout:
    """The layout of a training job."""
    return TrainLayout(spec.tp, spec.pp, spec.dp, spec.ep, spec.cp, spec.zero, spec.recompute, spec.micro_batch_tokens)


def train_settings(scenario: PosttrainScenario) -> TrainSettings:
    """The settings of a training step."""
    spec, asked = scenario.training, scenario.trajectories
    return TrainSettings(
        minibatches=spec.minibatches,
        old_log_probs=spec.old_log_probs,
        reference=spec.reference,
        packing=spec.packing,
        batch=None if spec.weighed else asked.prompts * asked.group,
    )


def weight_seconds(
    scenario: PosttrainScenario,
    model: ModelSpec,
    topology: Topology,
    layout: TrainLayout,
    rollouts: Sequence[RolloutEngines],
) -> tuple[float, float]:
    """Seconds for these engines to free their GPUs before training, and to get the new weights after it."""
    if scenario.mode == "colocated":
        engines = [each.layout for each in rollouts]
        own = max(weight_bytes(model, tp=engine) for engine in engines)
        ways = [reshard(model, topology, layout, engine).seconds for engine in engines]
        return sleep(topology, own).seconds, max(ways) + wake(topology, 0.0).seconds
    how = scenario.sync
    if how.kind == "disk":
        return 0.0, via_disk(model, topology, layout, rollouts, Disk(how.disk_write, how.disk_read)).seconds
    send = broadcast if how.kind == "broadcast" else point_to_point
    return 0.0, send(model, topology, layout, rollouts).seconds
