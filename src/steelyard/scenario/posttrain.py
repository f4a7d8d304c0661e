"""What a user writes about post-training: who rolls out, who trains, and how the two go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from steelyard.scenario.base import Count, Positive, Replicas, Spec, Whole, Written, mistake
from steelyard.scenario.engine import EngineSpec
from steelyard.scenario.model import Model
from steelyard.scenario.rollouts import TrajectoriesSpec
from steelyard.scenario.scenario import CostSpec
from steelyard.scenario.tails import NoTail, TailSpec
from steelyard.scenario.topology import TopologySpec

Mode = Literal["colocated", "split", "one-step-off", "asynchronous"]
USUAL_STALENESS: Mapping[Mode, int] = {"colocated": 0, "split": 0, "one-step-off": 1, "asynchronous": 2}
SyncKind = Literal["broadcast", "shards", "disk"]
RouterName = Literal[
    "round-robin",
    "least-outstanding",
    "sticky",
    "prefix-aware",
    "power-of-two",
    "shortest-first",
    "length-predicted",
    "least-attained",
    "c-mlfq",
    "heddle",
    "cost-aware",
]
EstimatorName = Literal["suffix", "trie", "turn", "oracle", "noisy", "blind"]

PlannerName = Literal[
    "given",
    "static-best",
    "proportional",
    "one-at-a-time",
    "libra",
    "libra-published",
    "search",
    "simulated",
    "oracle",
]
PoolName = Literal["none", "thresholds", "payoff"]


class BucketSpec(Spec):
    """Rollout engines of one tensor-parallel degree."""

    tp: Count = Field(description="GPUs per engine.")
    replicas: Replicas = Field(description="Engines side by side.")


class TrainingSpec(Spec):
    """How the training job lies over its GPUs, and what a step of it does."""

    tp: Count = Field(default=1, description="Tensor-parallel degree.")
    pp: Count = Field(default=1, description="Pipeline stages.")
    dp: Count = Field(default=1, description="Data-parallel ranks.")
    ep: Count = Field(default=1, description="Ranks that experts are dealt out to.")
    cp: Count = Field(default=1, description="Ranks that a sequence is split over.")
    zero: Literal[0, 1, 2, 3] = Field(default=1, description="What data-parallel ranks share out; 3 is FSDP.")
    recompute: Literal["none", "selective", "full"] = Field(default="full", description="What is computed again.")
    micro_batch_tokens: Count = Field(default=16384, description="Tokens that a GPU takes at a time.")
    packing: Literal["balanced", "best-fit"] = Field(
        default="balanced",
        description="balanced: samples are shared out to ranks as evenly as can be, then to micro-batches, as verl "
        "does; best-fit: micro-batches are filled up, then dealt out to ranks.",
    )
    minibatches: Count = Field(default=1, description="Optimiser updates to a training step.")
    old_log_probs: bool = Field(default=True, description="Whether the old policy's log-probabilities are computed.")
    reference: Literal["none", "resident", "offloaded"] = Field(default="none", description="The reference policy.")
    weighed: bool = Field(
        default=False,
        description="Whether gradients are weighed by tokens, so that data-parallel ranks need not have equal numbers "
        "of samples; if not, their number divides the batch.",
    )

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.tp * self.pp * self.dp * self.cp


class SyncSpec(Spec):
    """How new weights get from training to rollout engines."""

    kind: SyncKind = Field(default="broadcast", description="From one rank to all, shard by shard, or over a disk.")
    disk_write: Positive = Field(default=5e9, description="Bytes per second that the disk takes, from all together.")
    disk_read: Positive = Field(default=2e10, description="Bytes per second that it gives.")


class PosttrainScenario(Written):
    """A whole post-training run: rollouts with tools, training, weight sync, step after step."""

    model: Model = Field(description="The policy.")
    gpu: str = Field(min_length=1, description="GPU type, by its name in the catalog.")
    topology: TopologySpec | None = Field(default=None, description="How GPUs are wired; the GPU's usual nodes if not.")
    trajectories: TrajectoriesSpec = Field(description="What agents do: a preset's name, or its keys.")
    mode: Mode = Field(
        default="split",
        description="colocated: the same GPUs roll out, then train; split: GPUs of their own, in turn; one-step-off: "
        "one batch is rolled out while the last is trained on; asynchronous: rollouts never wait, up to `staleness`.",
    )
    staleness: Whole | None = Field(
        default=None,
        description="Weight versions that a sample may be behind when it is trained on; by mode 0, 0, 1 and 2 if not "
        "given, and more where the tail policy carries samples over to later steps.",
    )
    rollout: tuple[BucketSpec, ...] = Field(min_length=1, description="Rollout engines, by tensor-parallel degree.")
    training: TrainingSpec = Field(default=TrainingSpec(), description="The training job.")
    router: RouterName = Field(default="cost-aware", description="Who decides where a turn runs (docs/balance.md).")
    estimator: EstimatorName = Field(default="suffix", description="Who says what a trajectory has left.")
    planner: PlannerName = Field(
        default="given",
        description="Who splits GPUs between the stages anew while it runs (docs/planner.md). given: nobody; "
        "static-best: the best split for all of the run, found beforehand; oracle: knows the lengths to come.",
    )
    pool: PoolName = Field(
        default="none",
        description="Whether training replicas are lent by rollout and given back (docs/pool.md), and by which rule.",
    )
    tail: TailSpec = Field(
        default=NoTail(),
        description="What to do about the last trajectories of a step (docs/pool.md): its name, or its settings.",
    )
    streaming: bool = Field(
        default=False,
        description="Whether training takes whole groups as they come, with one update when all of a step are through, "
        "instead of waiting for the last of them.",
    )
    sync: SyncSpec = Field(default=SyncSpec(), description="Weight sync.")
    engine: EngineSpec = Field(default=EngineSpec(), description="Engine settings, in vLLM's names.")
    cost: CostSpec = Field(default=CostSpec(source="auto"), description="The source of operator times.")
    steps: Count = Field(default=5, description="Training steps.")
    seed: Whole = Field(default=0, description="Seed of everything random; the same seed gives the same result.")

    @property
    def rollout_gpus(self) -> int:
        """GPUs that roll out."""
        return sum(bucket.tp * bucket.replicas for bucket in self.rollout)

    @property
    def gpus(self) -> int:
        """GPUs of the whole run."""
        both = self.rollout_gpus, self.training.gpus
        return max(both) if self.mode == "colocated" else sum(both)

    @property
    def staleness_bound(self) -> int:
        """Weight versions that samples may be behind."""
        usual = USUAL_STALENESS[self.mode]
        return usual + self.tail.carried if self.staleness is None else self.staleness

    @property
    def synchronous(self) -> bool:
        """Whether rollouts stand still while training runs."""
        return self.mode in ("colocated", "split")

    @property
    def lead(self) -> int:
        """Steps whose rollout may begin before the weights they would have in turn: what is carried over later must
        not have become too old by then."""
        return 0 if self.synchronous else self.staleness_bound - self.tail.carried

    @model_validator(mode="after")
    def _coherent(self) -> PosttrainScenario:
        degrees = [bucket.tp for bucket in self.rollout]
        for i, tp in enumerate(degrees):
            if tp in degrees[:i]:
                raise mistake("two buckets have this degree; give their replicas together", "rollout", i, "tp")
        if self.mode == "colocated" and self.rollout_gpus != self.training.gpus:
            raise mistake(
                f"colocated runs on the same GPUs, but rollouts have {self.rollout_gpus} and training "
                f"{self.training.gpus}; make them equal",
                "rollout",
            )
        if self.synchronous and self.staleness_bound and not self.tail.carried:
            raise mistake(f"{self.mode} is synchronous; leave it out, or use mode asynchronous", "staleness")
        least = self.tail.carried + (not self.synchronous)
        if self.tail.carried and self.staleness_bound < least:
            raise mistake(
                f"tail {self.tail.kind} carries samples over to later steps, which in mode {self.mode} may "
                f"put them {least} behind; give {least} or more, or leave it out",
                "staleness",
            )
        if self.streaming and self.mode == "colocated":
            raise mistake("colocated GPUs cannot train while they roll out; use another mode", "streaming")
        if self.streaming and self.training.minibatches > 1:
            raise mistake("streaming makes one update a step; leave training.minibatches at 1", "streaming")
        if self.pool != "none" and self.mode == "colocated":
            raise mistake("colocated stages share all GPUs already; leave it out", "pool")
        if self.engine.scheduler != "vllm":
            raise mistake("rollouts are scheduled as vLLM does; leave it out", "engine", "scheduler")
        if self.engine.tiers:
            raise mistake("rollout engines have no tiers; the router moves caches to the host", "engine", "tiers")
        return self
