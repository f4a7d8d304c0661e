"""A core's configuration: plain data, so that a log can begin with it and a replay needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from steelyard.balance.beginnings import ByPrompt
from steelyard.balance.core import Core
from steelyard.balance.encoding import ADDED_LATER
from steelyard.balance.estimate import ESTIMATORS, Oracle, PaperTrie
from steelyard.balance.estimate.sparing import Sparing
from steelyard.balance.placement import Placement
from steelyard.balance.plan.by_name import PlannerSettings
from steelyard.balance.pool import PoolRules
from steelyard.balance.rounds import BatchRounds, Rounds, RoundSettings, TailRounds
from steelyard.balance.route import BucketSpeed
from steelyard.balance.route.rollout import ORACLES, QUEUE_CAP, rollout_router
from steelyard.balance.tail import (
    Divided,
    OverSampling,
    PartialRollout,
    Reconfiguring,
    Repacking,
    TailBatching,
    TailPolicy,
)
from steelyard.records import Trajectory

_LEARNT = 8  # the suffix estimator learns from one of so many trajectories: all would take longer than simulating them
_REBUILT_STEPS = 50  # after so many steps' trajectories tries are built again, as in Libra
_MOST_IN_TRIES = 200_000  # trajectories: tries of more would take gigabytes; chosen
_TOLD = ("oracle", "noisy")  # estimators that are told the answer

TailSettings = OverSampling | TailBatching | PartialRollout | Divided | Repacking | Reconfiguring


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Which router, estimator, tail policy, pool and planner decide, and what they are told of the cluster."""

    router: str
    estimator: str
    seed: int
    speeds: tuple[tuple[int, BucketSpeed], ...]  # by tensor-parallel degree
    rounds: RoundSettings
    tail: TailSettings | None = None
    pool: PoolRules | None = None
    planner: PlannerSettings | None = None
    queue_cap: int = field(default=QUEUE_CAP, metadata=ADDED_LATER)  # of c-mlfq; earlier versions had another rule

    @property
    def tells_truth(self) -> bool:
        """Whether `Begun` has to bring the whole trajectory, for a bound that knows the answer."""
        return self.router in ORACLES or self.estimator in _TOLD

    @property
    def tail_policy(self) -> TailPolicy | None:
        """The tail policy, told of the replicas' speeds if it looks at them."""
        return replace(self.tail, speeds=self.speeds) if isinstance(self.tail, Reconfiguring) else self.tail

    def core(self, known: Iterable[Trajectory] = ()) -> Core:
        """A core before its first event. Its estimator has learnt from ``known``."""
        placement = self._placement(known)
        rounds: Rounds = BatchRounds(self.rounds)
        tail = self.tail_policy
        if tail is not None:
            rounds = TailRounds(self.rounds, tail, placement.rollouts)
        planning = None if self.planner is None else self.planner.planning(forms_pool=self.pool is not None)
        return Core(placement, rounds, self.pool, planning)

    def _placement(self, known: Iterable[Trajectory]) -> Placement:
        router = rollout_router(self.router, speeds=dict(self.speeds), queue_cap=self.queue_cap, seed=self.seed)
        truth = Oracle()
        if self.router in ORACLES or self.estimator == "oracle":
            return Placement(router, truth, truth, truth)
        estimator, beginnings = ESTIMATORS[self.estimator](truth), ByPrompt()
        if isinstance(estimator, PaperTrie):
            step = self.rounds.groups * self.rounds.size
            estimator = PaperTrie(most=min(_REBUILT_STEPS * step, _MOST_IN_TRIES))
        for each in known:
            estimator.learn(each)
            beginnings.learn(each)
        taught = Sparing(estimator, _LEARNT) if self.estimator == "suffix" else estimator
        return Placement(router, taught, beginnings, truth if self.tells_truth else None)
