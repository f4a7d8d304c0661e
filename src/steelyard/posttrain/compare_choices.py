"""What is compared: our choice of policies, our choice with one policy changed, bounds, and other systems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal, get_args

from steelyard.balance.route.rollout import ORACLES
from steelyard.errors import UserError, did_you_mean
from steelyard.scenario.posttrain import EstimatorName, Mode, PlannerName, PoolName, RouterName
from steelyard.scenario.tails import TAIL_NAMES

Kind = Literal["ours", "bound", "rival", "change"]


@dataclass(frozen=True)
class Choice:
    """The policies of a post-training run. The defaults are those that we recommend."""

    mode: Mode = "asynchronous"
    router: RouterName = "cost-aware"
    estimator: EstimatorName = "suffix"
    planner: PlannerName = "simulated"
    tail: str = "none"
    pool: PoolName = "none"
    streaming: bool = True
    weighed: bool = True  # gradients by tokens: see `training.weighed`

    @property
    def knows(self) -> bool:
        """Whether a policy knows the lengths of trajectories in advance, which no real system can."""
        return self.estimator in ("oracle", "noisy") or self.planner == "oracle" or self.router in ORACLES

    @property
    def coherent(self) -> Choice:
        """The nearest choice that can be run: co-located stages neither stream nor have a pool."""
        if self.mode == "colocated":
            return replace(self, streaming=False, pool="none", planner="static-best")
        return self


@dataclass(frozen=True)
class Contender:
    """A choice with the name it has in tables."""

    name: str
    kind: Kind
    choice: Choice
    note: str = ""


OURS = Choice()

DIMENSIONS: Mapping[str, Sequence[Any]] = {
    "mode": get_args(Mode),
    "router": get_args(RouterName),
    "estimator": get_args(EstimatorName),
    "planner": get_args(PlannerName),
    "tail": TAIL_NAMES,
    "pool": get_args(PoolName),
    "streaming": (False, True),
    "weighed": (False, True),
}
"""The dimensions of a choice, with all their values."""

BOUNDS = (
    Contender("oracle", "bound", replace(OURS, estimator="oracle"), "knows the lengths of all trajectories under way"),
    Contender(
        "oracle, fixed split",
        "bound",
        replace(OURS, estimator="oracle", planner="static-best"),
        "the same on the best fixed split, in hindsight",
    ),
    Contender("static best", "bound", replace(OURS, planner="static-best"), "the best fixed split, in hindsight"),
)

_PLAIN = Choice("split", "least-outstanding", "blind", "static-best", pool="none", streaming=False, weighed=False)

RIVALS = (
    Contender(
        "Libra, planner",
        "rival",
        Choice("asynchronous", "c-mlfq", "trie", "libra-published", pool="none", streaming=False, weighed=False),
        "as published: C-MLFQ, prefix trie, tree and dynamic programme with its own costs",
    ),
    Contender(
        "Libra, pool",
        "rival",
        Choice("asynchronous", "c-mlfq", "trie", "static-best", pool="thresholds", streaming=False, weighed=False),
        "the same with its hybrid pool by thresholds, on the best fixed split",
    ),
    Contender("verl, co-located", "rival", replace(_PLAIN, mode="colocated", router="sticky"), "hybrid engine"),
    Contender("verl, one step off", "rival", replace(_PLAIN, mode="one-step-off", router="sticky")),
    Contender(
        "verl, dynamic schedule",
        "rival",
        Choice("asynchronous", "sticky", "blind", "one-at-a-time", pool="none", streaming=False, weighed=False),
        "fully asynchronous; GPUs go to the slower stage one unit at a time",
    ),
    Contender("slime", "rival", replace(_PLAIN, mode="asynchronous"), "asynchronous, the least busy engine"),
    Contender("AReaL", "rival", replace(_PLAIN, mode="asynchronous", router="round-robin"), "staleness-bounded"),
    Contender(
        "Heddle", "rival", replace(_PLAIN, router="heddle", estimator="suffix"), "longest first; our estimator, not its"
    ),
    Contender("RollPacker", "rival", replace(_PLAIN, tail="tail-batching"), "synchronous, long prompts in later steps"),
    Contender("Seer", "rival", replace(_PLAIN, tail="divided"), "synchronous, divided rollouts with group context"),
    Contender("APRIL", "rival", replace(_PLAIN, tail="over-sampling"), "over-sampling, the rest goes on later"),
    Contender("Kimi partial", "rival", replace(_PLAIN, tail="partial"), "partial rollouts"),
)


def contenders(limits: Mapping[str, Sequence[Any]], full: bool, rivals: bool) -> list[Contender]:
    """All contenders, each choice once: ours, bounds, rivals, then changes of ours.

    ``limits`` has the values to try of a dimension. Changes are in one dimension at a time, or with ``full`` the
    product of modes, routers, planners, tails and all limited dimensions.
    """
    found = [Contender("ours", "ours", OURS), *BOUNDS, *(RIVALS if rivals else ())]
    found += _product(limits) if full else _one_at_a_time(limits)
    unique: dict[Choice, Contender] = {}
    for each in found:
        unique.setdefault(each.choice.coherent, replace(each, choice=each.choice.coherent))
    return list(unique.values())


def chosen(dimension: str, text: str) -> list[Any]:
    """The values of a dimension in a user's comma-separated list."""
    known = [str(each) for each in DIMENSIONS[dimension]]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"--{dimension}s: {name!r} is none; {did_you_mean(name, known)}")
    return names


def _one_at_a_time(limits: Mapping[str, Sequence[Any]]) -> Iterator[Contender]:
    for dimension, names in {**DIMENSIONS, **limits}.items():
        for name in names:
            change: dict[str, Any] = {dimension: name}
            yield Contender(_name_of(change), "change", replace(OURS, **change))


def _product(limits: Mapping[str, Sequence[Any]]) -> Iterator[Contender]:
    swept = {name: DIMENSIONS[name] for name in ("mode", "router", "planner", "tail")} | dict(limits)
    ours = asdict(OURS)
    for values in product(*swept.values()):
        change = dict(zip(swept, values, strict=True))
        differing = {name: value for name, value in change.items() if value != ours[name]}
        yield Contender(_name_of(differing), "change", replace(OURS, **change))


def _name_of(change: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {str(value).lower()}" for name, value in change.items()) or "ours"
