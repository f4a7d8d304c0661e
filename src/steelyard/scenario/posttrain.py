"""Post-training scenarios: rollout, training, and how the two are combined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from steelyard.scenario.base import Spec, Written, mistake
from steelyard.scenario.engine import EngineSpec
from steelyard.scenario.model import Model
from steelyard.scenario.numbers import (
    MOST_REPLICAS,
    MOST_ROLLED_OUT,
    MOST_TRAJECTORIES,
    MOST_TURNS,
    Amount,
    BytesPerSecond,
    Count,
    Degree,
    Few,
    FewOrZero,
    Ranks,
    Replicas,
    Seed,
    Stages,
    Steps,
    Tokens,
    unit,
)
from steelyard.scenario.rollouts import TrajectoriesSpec, TrajectorySpec
from steelyard.scenario.scenario import CostSpec
from steelyard.scenario.tails import NoTail, ReconfigureSpec, TailSpec
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
SwitchName = Literal["difference", "restart", "blue-green", "pre-warm", "swap"]
Objective = Literal["throughput", "reward", "cost"]


class BucketSpec(Spec):
    """Rollout engines of one tensor-parallel degree."""

    tp: Degree = Field(description="GPUs per engine.")
    replicas: Replicas = Field(description="Number of engines.")


class TrainingSpec(Spec):
    """The training job: its layout and its steps."""

    tp: Degree = Field(default=1, description="Tensor-parallel degree.")
    pp: Stages = Field(default=1, description="Pipeline stages.")
    dp: Ranks = Field(default=1, description="Data-parallel ranks.")
    ep: Ranks = Field(default=1, description="Expert-parallel degree.")
    cp: Ranks = Field(default=1, description="Context-parallel degree.")
    zero: Literal[0, 1, 2, 3] = Field(default=1, description="ZeRO stage: what data-parallel ranks shard; 3 is FSDP.")
    recompute: Literal["none", "selective", "full"] = Field(
        default="full", description="Activations that are recomputed in the backward pass."
    )
    micro_batch_tokens: Tokens = Field(default=16384, description="Most tokens of a micro-batch, per GPU.")
    packing: Literal["balanced", "best-fit"] = Field(
        default="balanced",
        description="balanced: samples are spread evenly over ranks, then over micro-batches, as in verl; best-fit: "
        "micro-batches are filled first, then assigned to ranks.",
    )
    minibatches: Few = Field(
        default=1, description="Optimiser updates per training step.", json_schema_extra=unit("updates")
    )
    old_log_probs: bool = Field(default=True, description="Whether log-probabilities of the old policy are computed.")
    reference: Literal["none", "resident", "offloaded"] = Field(
        default="none", description="Reference policy: none, kept on the GPUs, or offloaded to the host."
    )
    weighed: bool = Field(
        default=False,
        description="Whether gradients are weighted by tokens, so that data-parallel ranks may have different numbers "
        "of samples; if not, dp must divide the batch.",
    )
    generates: bool = Field(
        default=False,
        description="Whether engines on its GPUs generate while it waits for samples; not in modes where rollout and "
        "training take turns.",
    )

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.tp * self.pp * self.dp * self.cp


class AdmissionSpec(Spec):
    """Which samples begin in asynchronous mode, and what becomes of those that take long."""

    concurrency: Count | None = Field(
        default=None,
        description="Samples that run at once at most; limited by `staleness` alone if not given.",
        json_schema_extra=unit("samples"),
    )
    late: Literal["wait", "drop", "train"] = Field(
        default="wait",
        description="Groups that would be older than `staleness` when they are trained on. wait: training waits for "
        "them in time; drop: they are aborted, and others begin; train: they are trained on all the same.",
    )


class SyncSpec(Spec):
    """Weight sync from training to rollout engines."""

    kind: SyncKind = Field(
        default="broadcast",
        description="broadcast: from one rank to all; shards: shard by shard; disk: over a shared disk.",
    )
    disk_write: BytesPerSecond = Field(default=5e9, description="Bytes per second that the disk writes, in all.")
    disk_read: BytesPerSecond = Field(default=2e10, description="Bytes per second that the disk reads, in all.")


class PosttrainScenario(Written):
    """A whole post-training run: rollouts with tools, training, weight sync, step after step."""

    model: Model = Field(description="The policy.")
    gpu: str = Field(min_length=1, description="GPU type, by its name in the catalog.")
    topology: TopologySpec | None = Field(
        default=None, description="How GPUs are wired; the GPU's usual nodes if not given."
    )
    trajectories: TrajectoriesSpec = Field(description="Trajectories of agents: a preset's name, or its keys.")
    mode: Mode = Field(
        default="split",
        description="colocated: the same GPUs roll out, then train; split: rollout and training have their own GPUs "
        "and take turns; one-step-off: a batch is rolled out while the last is trained on; asynchronous: rollouts run "
        "ahead, within `staleness`.",
    )
    staleness: FewOrZero | None = Field(
        default=None,
        description="Most weight versions that a sample may be behind when it is trained on. If not given: 0, 0, 1 and "
        "2 by mode, plus the steps that the tail policy carries samples over.",
        json_schema_extra=unit("weight versions"),
    )
    rollout: tuple[BucketSpec, ...] = Field(
        min_length=1, max_length=100, description="Rollout engines, by tensor-parallel degree."
    )
    training: TrainingSpec = Field(default=TrainingSpec(), description="The training job.")
    router: RouterName = Field(
        default="cost-aware", description="Policy that chooses the replica of a turn (docs/balance.md)."
    )
    queue_cap: Count = Field(
        default=64,
        description="Turns on a replica at most, running and queued, before c-mlfq passes it over.",
        json_schema_extra=unit("turns"),
    )
    estimator: EstimatorName = Field(
        default="suffix", description="Estimator of what a trajectory has left (docs/estimators.md)."
    )
    planner: PlannerName = Field(
        default="given",
        description="Planner that moves GPUs between rollout and training during the run (docs/planner.md). given: "
        "none; static-best: the best fixed split, found before the run; oracle: knows future lengths.",
    )
    planning: Literal["at-once", "during-step"] = Field(
        default="at-once",
        description="When a change of plan is carried out. at-once: after the step that it follows from, as if "
        "planning took no time; during-step: one step later, as live, where the planner thinks while the run goes on.",
    )
    switch: SwitchName = Field(
        default="difference",
        description="How engines change when a planner changes the layout (docs/posttrain.md). difference: those that "
        "the new plan does not have stop, and new ones start in their place; restart: all stop, and all start anew; "
        "blue-green: new ones start where no engine runs, and the old ones serve until they are up; pre-warm: new ones "
        "start ahead of the change, as far as GPUs or their memory are spare; swap: they change one after the other, "
        "and the next batch does not wait.",
    )
    pool: PoolName = Field(
        default="none",
        description="Rule of the hybrid pool, which moves replicas between rollout and training (docs/pool.md).",
    )
    tail: TailSpec = Field(
        default=NoTail(),
        description="Policy for the last trajectories of a step (docs/pool.md): its name, or its settings.",
    )
    admission: AdmissionSpec = Field(
        default=AdmissionSpec(), description="Admission of samples in asynchronous mode (docs/pool.md)."
    )
    streaming: bool = Field(
        default=False,
        description="Whether training starts on each group when it is complete, with one update at the end of the "
        "step, instead of waiting for the last group.",
    )
    sync: SyncSpec = Field(default=SyncSpec(), description="Weight sync.")
    engine: EngineSpec = Field(default=EngineSpec(), description="Engine settings, in vLLM's names.")
    price_per_hour: Amount | None = Field(
        default=None,
        description="US dollars per GPU and hour; the catalog's price if not given.",
        json_schema_extra=unit("USD/h"),
    )
    cost: CostSpec = Field(default=CostSpec(source="auto"), description="Sources of operator times.")
    objective: Objective | None = Field(
        default=None,
        description="What the way to run is chosen for, before the run, by short runs on trajectories of another seed: "
        "tokens per second, time to a reward, or its cost. The choice takes the place of mode, staleness (which then "
        "is the most that is allowed), streaming, admission, tail, router, estimator, planner, pool and the split of "
        "the GPUs. If not given, all is as written. For posttrain, plan and compare.",
    )
    steps: Steps = Field(default=5, description="Training steps.")
    seed: Seed = Field(default=0, description="Seed of everything random; the same seed gives the same result.")

    @property
    def rollout_gpus(self) -> int:
        """GPUs of rollout."""
        return sum(bucket.tp * bucket.replicas for bucket in self.rollout)

    @property
    def gpus(self) -> int:
        """GPUs of the whole run."""
        both = self.rollout_gpus, self.training.gpus
        return max(both) if self.mode == "colocated" else sum(both)

    @property
    def staleness_bound(self) -> int:
        """Bound on staleness, in weight versions."""
        usual = USUAL_STALENESS[self.mode]
        return usual + self.tail.carried if self.staleness is None else self.staleness

    @property
    def synchronous(self) -> bool:
        """Whether rollouts pause during training."""
        return self.mode in ("colocated", "split")

    @property
    def lead(self) -> int:
        """Steps that rollout may run ahead of training. Steps that the tail policy carries samples over count against
        staleness, so they reduce this."""
        return 0 if self.synchronous else self.staleness_bound - self.tail.carried

    @model_validator(mode="after")
    def _fits_into_memory(self) -> PosttrainScenario:
        """Refuse more engines or trajectories than can be simulated, with what could."""
        engines = sum(bucket.replicas for bucket in self.rollout)
        if engines > MOST_REPLICAS:
            raise mistake(f"{engines:,} engines in all; at most {MOST_REPLICAS:,} can be simulated", "rollout")
        asked = self.trajectories
        step = asked.prompts * asked.group
        at_once = step * self.tail.begun * (1 + self.lead)
        if at_once > MOST_TRAJECTORIES:
            raise mistake(
                f"{at_once:,.0f} trajectories in progress at once (prompts times group, times what tail and staleness "
                f"add); at most {MOST_TRAJECTORIES:,} can be simulated",
                *("trajectories", "prompts"),
            )
        if step * self.steps > MOST_ROLLED_OUT:
            raise mistake(
                f"{step * self.steps:,} trajectories in all; at most {MOST_ROLLED_OUT:,} can be simulated: "
                f"{MOST_ROLLED_OUT // step:,} steps of this size",
                "steps",
            )
        if isinstance(asked, TrajectorySpec) and step * asked.budget.turns > MOST_TURNS:
            raise mistake(
                f"a step may have {step * asked.budget.turns:,} turns; at most {MOST_TURNS:,} can be simulated: "
                f"{MOST_TURNS // step:,} turns for each of {step:,} trajectories",
                *("trajectories", "budget", "turns"),
            )
        return self

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
        if self.admission != AdmissionSpec() and (self.mode != "asynchronous" or self.tail.kind != "none"):
            raise mistake("only for mode asynchronous without a tail policy; leave it out", "admission")
        concurrency = self.admission.concurrency
        if concurrency is not None and concurrency < self.trajectories.group:
            raise mistake(
                f"a group has {self.trajectories.group} samples, which begin together; give at least as many",
                *("admission", "concurrency"),
            )
        if self.streaming and self.mode == "colocated":
            raise mistake("colocated GPUs cannot train while they roll out; use another mode", "streaming")
        if self.streaming and self.training.minibatches > 1:
            raise mistake("streaming makes one update a step; leave training.minibatches at 1", "streaming")
        if self.training.generates and self.synchronous:
            raise mistake(f"in mode {self.mode} it never waits for samples while others run", "training", "generates")
        if self.pool != "none" and self.mode == "colocated":
            raise mistake("colocated stages share all GPUs already; leave it out", "pool")
        if self.switch in ("blue-green", "pre-warm") and self.mode == "colocated":
            raise mistake(
                f"{self.switch} starts engines beside those that run, and colocated stages share all GPUs; use "
                "difference, restart or swap",
                "switch",
            )
        if isinstance(self.tail, ReconfigureSpec):
            self._can_reconfigure(self.tail)
        if self.objective == "reward" and self.trajectories.learning is None:
            raise mistake("reward: needs trajectories.learning, for example {samples: 100000}", "objective")
        if self.engine.scheduler != "vllm":
            raise mistake("rollouts are scheduled as vLLM does; leave it out", "engine", "scheduler")
        if self.engine.tiers:
            raise mistake("rollout engines have no tiers; the router moves caches to the host", "engine", "tiers")
        return self

    def _can_reconfigure(self, tail: ReconfigureSpec) -> None:
        """Refuse what a change of the rollout's layout inside a step cannot go with."""
        if not self.synchronous:
            raise mistake(
                f"reconfigure: in mode {self.mode} the next batch fills the engines that a tail leaves idle; use mode "
                "colocated or split",
                "tail",
            )
        if self.planner not in ("given", "static-best") or self.pool != "none":
            other = f"planner {self.planner}" if self.pool == "none" else f"pool {self.pool}"
            raise mistake(f"reconfigure: needs engines that stay; leave {other} out", "tail")
