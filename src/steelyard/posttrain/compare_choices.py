"""What is compared: the way we choose for an objective, bounds, other systems, and our policies with one changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal, get_args

from steelyard.balance.admission import Late
from steelyard.balance.route.rollout import ORACLES
from steelyard.errors import UserError, did_you_mean
from steelyard.posttrain.compare_profiles import POLICIES, Open, Profile
from steelyard.posttrain.compare_rivals import PROFILES
from steelyard.scenario.posttrain import EstimatorName, Mode, Objective, PlannerName, PoolName, RouterName
from steelyard.scenario.tails import TAIL_NAMES

Kind = Literal["ours", "bound", "rival", "change"]


@dataclass(frozen=True)
class Choice:
    """The policies of a post-training run. The defaults are our own, in the way that is mostly fastest. With an
    objective the way is chosen for it, and the other policies are not used."""

    mode: Mode = "asynchronous"
    router: RouterName = "cost-aware"
    estimator: EstimatorName = "suffix"
    planner: PlannerName = "simulated"
    tail: str = "none"
    pool: PoolName = "none"
    streaming: bool = True
    weighed: bool = True  # gradients by tokens: see `training.weighed`
    late: Late = "wait"  # asynchronous without a tail policy: see `admission`
    concurrency: float | None = None  # likewise, in batches
    settings: tuple[tuple[str, Any], ...] = ()  # keys of the scenario, as `tail.factor`
    objective: Objective | None = None

    @property
    def knows(self) -> bool:
        """Whether a policy knows the lengths of trajectories in advance, which no real system can."""
        if self.objective is not None:
            return False
        return self.estimator in ("oracle", "noisy") or self.planner == "oracle" or self.router in ORACLES

    @property
    def coherent(self) -> Choice:
        """The nearest choice that can be run: co-located stages neither stream nor have a pool, and admission is for
        asynchronous ways without a tail policy. Engines are merged for a tail only where there is one, since batches
        take turns, and where nothing else changes them."""
        found = self
        if self.objective is not None:
            return self
        if self.mode == "colocated":
            found = replace(found, streaming=False, pool="none", planner="static-best")
        elif self.tail == "reconfigure" and self.mode != "split":
            found = replace(found, tail="none")
        elif self.tail == "reconfigure":
            found = replace(found, pool="none", planner="given" if self.planner == "given" else "static-best")
        if found.mode != "asynchronous" or found.tail != "none":
            found = replace(found, late="wait", concurrency=None)
        return found


@dataclass(frozen=True)
class Contender:
    """A choice with the name it has in tables."""

    name: str
    kind: Kind
    choice: Choice
    note: str = ""
    open: Open = ()  # settings of the choice that are tuned for each scenario
    found: tuple[tuple[str, Any], ...] = ()  # what tuning came to
    split: int = 0  # which of the fixed splits of its kind it has (`compare_plans.py`)
    left_out: str = ""  # what a system has and we do not simulate

    def tuned(self, values: Mapping[str, Any]) -> Contender:
        """The same with values for open settings."""
        policies = {name: value for name, value in values.items() if name in POLICIES}
        others = {name: value for name, value in values.items() if name not in POLICIES}
        settings = tuple(sorted((dict(self.choice.settings) | others).items()))
        return replace(
            self, choice=replace(self.choice, **policies, settings=settings), open=(), found=tuple(values.items())
        )


OUR_POLICIES = Choice()
OURS = (
    Contender("ours", "ours", Choice(objective="throughput"), "the way that is chosen for tokens per second"),
    Contender("ours, for reward", "ours", Choice(objective="reward"), "the way that is chosen for time to reward"),
)

DIMENSIONS: Mapping[str, Sequence[Any]] = {
    "mode": get_args(Mode),
    "router": get_args(RouterName),
    "estimator": get_args(EstimatorName),
    "planner": get_args(PlannerName),
    "tail": TAIL_NAMES,
    "pool": get_args(PoolName),
    "streaming": (False, True),
    "weighed": (False, True),
    "late": get_args(Late),
    "concurrency": (None, 1.0),
}
"""The dimensions of a choice, with all their values."""

_KNOWING = replace(OUR_POLICIES, estimator="oracle", planner="static-best")
BOUNDS = (
    Contender("oracle", "bound", _KNOWING, "knows all lengths, on the best fixed split in hindsight"),
    Contender(
        "oracle, co-located",
        "bound",
        replace(_KNOWING, mode="colocated", streaming=False),
        "the same with both stages on all GPUs",
    ),
    Contender(
        "static best", "bound", replace(OUR_POLICIES, planner="static-best"), "the best fixed split in hindsight"
    ),
)


def _rival(profile: Profile) -> Contender:
    """A system, with the first value of each setting that is to be tuned."""
    first = dict(profile.first)
    policies = {name: first.pop(name) for name in POLICIES}
    choice = Choice(**policies, settings=tuple(sorted(first.items())))
    return Contender(profile.name, "rival", choice, profile.about, profile.open, left_out=profile.left_out)


RIVALS = tuple(map(_rival, PROFILES))


def contenders(limits: Mapping[str, Sequence[Any]], full: bool, rivals: bool) -> list[Contender]:
    """All contenders: ours, bounds, rivals, then our policies and changes of them that are none of these.

    ``limits`` has the values to try of a dimension. Changes are in one of these at a time, or with ``full`` the product
    of modes, routers, planners, tails and all of these.
    """
    found = [*OURS, *BOUNDS, *(RIVALS if rivals else ())]
    found += _product(limits) if full else _one_at_a_time(limits)
    unique: dict[Choice | str, Contender] = {}
    known = {each.choice for each in found if each.kind == "rival"}
    for each in found:
        choice = each.choice.coherent
        if each.kind == "rival":  # two systems may differ only in what is tuned
            unique[each.name] = each
        elif choice not in known:
            unique.setdefault(choice, replace(each, choice=choice))
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
    if limits:
        yield Contender(_name_of({}), "change", OUR_POLICIES)
    for dimension, names in limits.items():
        for name in names:
            change: dict[str, Any] = {dimension: name}
            yield Contender(_name_of(change), "change", replace(OUR_POLICIES, **change))


def _product(limits: Mapping[str, Sequence[Any]]) -> Iterator[Contender]:
    swept = {name: DIMENSIONS[name] for name in ("mode", "router", "planner", "tail")} | dict(limits)
    ours = asdict(OUR_POLICIES)
    for values in product(*swept.values()):
        change = dict(zip(swept, values, strict=True))
        differing = {name: value for name, value in change.items() if value != ours[name]}
        yield Contender(_name_of(differing), "change", replace(OUR_POLICIES, **change))


def _name_of(change: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {str(value).lower()}" for name, value in change.items()) or "our policies"
