"""Changes of GPU roles: the planner's and the hybrid pool's, with what they should gain and what they gained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

from steelyard.balance.core import Core
from steelyard.balance.events import WeightsPublished
from steelyard.balance.kinds import Command, Event
from steelyard.balance.plan.questions import (
    ChangePlan,
    PlanChanged,
    PlanRolledBack,
    PlansSimulated,
    PlanWanted,
    Simulate,
)
from steelyard.balance.pool import (
    Activate,
    Drain,
    Failed,
    Fetch,
    FormPool,
    Join,
    Leave,
    PoolDissolved,
    PoolEvent,
    PoolFormed,
    Reduce,
    RollBack,
    Serving,
    StepEnded,
    Sync,
)
from steelyard.balance.pool.ledger import Reallocation
from steelyard.balance.pool.member import MemberState, Patience
from steelyard.live.explaining.sentence import Explained, counted, listed

_STEPS = 3  # steps over which a gain is measured, as the simulator and the pool's ledger do it
_PATIENCE = Patience()  # that of every pool of a core


@dataclass
class _Change:
    """A change of plan, and the seconds of the steps since."""

    step: int  # after which it was proposed
    predicted: float
    begun: int | None = None  # the last step before it was in force
    before: float = 0.0
    after: list[float] = field(default_factory=list)


class RoleSentences:
    """Sentences about roles. ``before`` is called before an event is decided, the others after it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._synced: dict[int, float] = {}  # when engines had the weights of each step
        self._change: _Change | None = None  # whose gain is not known yet
        self._changed = -2  # the last step before the last change
        self._told: set[int] = set()  # entries of the pool's ledger whose gain was told
        self._states: dict[int, tuple[MemberState, float]] = {}  # of pool members: state and deadline

    def before(self, event: Event) -> None:
        pool = self._core.pool
        if pool is not None and isinstance(event, get_args(PoolEvent)):
            self._states = {each.replica: (each.state, each.deadline) for each in pool.members.values()}

    def event(self, event: Event, commands: Sequence[Command]) -> Iterator[Explained]:
        """What has happened, before what follows from it."""
        match event:
            case WeightsPublished():
                yield from self._step_over(event.version - 1, event.at, event.at)
            case PlanWanted():
                yield from self._step_over(event.step, event.at, event.at)
            case StepEnded():
                yield from self._step_over(event.step, event.at, event.at)
                yield from self._moves_gained(event)
            case PlanChanged():
                self._in_force()
                what = f"the plan after step {event.step} is in force; the change took {event.seconds:,.1f} s"
                yield Explained(event.at, "plan", "plan", what, event.step)
            case PlanRolledBack():
                self._change = None
                what = f"the change after step {event.step} is rolled back: {event.reason}"
                yield Explained(event.at, "plan", "plan", what, event.step)
            case PoolDissolved():
                yield _of_pool(event.at, "the pool ends: the change of plan takes over its replicas where they are")
            case PoolFormed():
                self._told.clear()
                core, hybrid = counted(len(event.core), "replica"), counted(len(event.hybrid), "replica")
                yield _of_pool(event.at, f"a pool is formed: training has {core}, and {hybrid} can be lent to it")
            case Serving():
                yield _of_replica(event.at, event.replica, "takes trajectories again")
        planning = self._core.planning
        if isinstance(event, PlanWanted | PlansSimulated) and not commands and planning is not None:
            yield Explained(event.at, "plan", "plan", f"the plan stays: {planning.plan}", self._step(event))

    def command(self, command: Command, event: Event) -> Iterator[Explained]:
        """What was decided."""
        match command:
            case Simulate():
                what = f"the planner asks how long {counted(len(command.questions), 'stage')} of plans would take"
                yield Explained(event.at, "plan", "plan", what, self._step(event))
            case ChangePlan():
                yield from self._planned(command, event.at)
            case FormPool():
                yield _of_pool(event.at, "a pool of the new layout may lend replicas once its engines are up")
            case Reduce():
                redo = f"; samples of {listed(list(command.redo))} are done again" if command.redo else ""
                what = f"gradients of step {command.step} are summed over {counted(len(command.weights), 'replica')}"
                yield Explained(event.at, "pool", "pool", what + redo, command.step)
            case Drain() | Leave() | Join() | Fetch() | Sync() | Activate() | RollBack():
                yield _of_replica(event.at, command.replica, self._moving(command, event))

    def rest(self) -> Iterator[Explained]:
        """Gains that were measured over fewer steps, at the end of a log."""
        last = max(self._synced.values(), default=0.0)
        yield from self._gained(last)
        for place, entry in enumerate(self._ledger):
            if entry.after and place not in self._told:
                yield _move_gained(entry, last)

    # -- plans --------------------------------------------------------------------------------------------------

    def _step(self, event: Event) -> int | None:
        """The step after which a planner plans."""
        return event.step if isinstance(event, PlanWanted) else max(self._synced, default=None)

    def _planned(self, command: ChangePlan, at: float) -> Iterator[Explained]:
        plan, now, step = command.plan, command.now, command.step
        yield from self._gained(at)
        before = now.step if plan.instead is None else plan.instead
        self._change = _Change(step, before - plan.step)
        why = f" ({plan.why})" if plan.why else ""
        what = (
            f"the plan changes after step {step}, from {now} to {plan}: a step should take {plan.step:,.1f} s, "
            f"{before - plan.step:,.1f} s less{why}"
        )
        yield Explained(at, "plan", "plan", what, step)

    def _step_over(self, step: int, at: float, now: float) -> Iterator[Explained]:
        """Engines have the weights of a step. The first report of it counts: a change may delay the others."""
        if step in self._synced:
            return
        self._synced[step] = at
        change = self._change
        if change is not None and change.begun is not None and step > change.begun + 1:  # the first waited for it
            change.after.append(self._seconds(step))
            if len(change.after) == _STEPS:
                yield from self._gained(now)

    def _in_force(self) -> None:
        """What steps took before a change: the last one, and those before it back to the change before."""
        if self._change is not None and self._synced:
            last = self._change.begun = max(self._synced)
            steps = range(max(self._changed + 2, last - _STEPS + 1), last + 1) or range(last, last + 1)
            self._change.before = sum(map(self._seconds, steps)) / len(steps)
            self._changed = last

    def _seconds(self, step: int) -> float:
        return self._synced[step] - self._synced.get(step - 1, 0.0)

    def _gained(self, at: float) -> Iterator[Explained]:
        change, self._change = self._change, None
        if change is None or not change.after:
            return
        gain = change.before - sum(change.after) / len(change.after)
        what = (
            f"the plan after step {change.step} has gained {gain:,.1f} s a step over "
            f"{counted(len(change.after), 'step')}; {change.predicted:,.1f} s were predicted"
        )
        yield Explained(at, "plan", "plan", what, change.step)

    # -- the pool -----------------------------------------------------------------------------------------------

    @property
    def _ledger(self) -> Sequence[Reallocation]:
        return () if self._core.pool is None else self._core.pool.ledger.entries

    def _moving(self, command: Drain | Leave | Join | Fetch | Sync | Activate | RollBack, event: Event) -> str:
        match command:
            case Drain() | Leave():
                entry = next(each for each in reversed(self._ledger) if each.replica == command.replica)
                where = "is lent to training" if isinstance(command, Drain) else "goes back to rollout"
                return f"{where}: a step took {entry.before:,.1f} s, and should take {entry.predicted:,.1f} s less"
            case Join():
                return f"is empty: it joins the training job and fetches the state of step {command.step}"
            case Fetch():
                return f"fetches the state of step {command.step}, which has begun meanwhile"
            case Sync():
                return f"has fetched its state: it goes along with the exchange of step {command.step}"
            case Activate():
                return f"trains from step {command.step} on"
            case RollBack():
                return f"is rolled back: {self._failure(command.replica, event)}"

    def _failure(self, replica: int, event: Event) -> str:
        """Why a member is rolled back."""
        if isinstance(event, Failed) and event.replica == replica:
            return event.reason
        state, deadline = self._states[replica]
        if deadline <= event.at:
            return f"it was {state} and did not answer in {_PATIENCE.of(state):g} s"
        return f"its gradient did not come within {_PATIENCE.gradient:g} s of the others"

    def _moves_gained(self, event: StepEnded) -> Iterator[Explained]:
        for place, entry in enumerate(self._ledger):
            if len(entry.after) == _STEPS and place not in self._told:
                self._told.add(place)
                yield _move_gained(entry, event.at)


def _move_gained(entry: Reallocation, at: float) -> Explained:
    steps = counted(len(entry.after), "step")
    what = f"has gained {entry.realised or 0.0:,.1f} s a step over {steps}; {entry.predicted:,.1f} s were predicted"
    return _of_replica(at, entry.replica, f"in {entry.to} {what}")


def _of_replica(at: float, replica: int, what: str) -> Explained:
    return Explained(at, "pool", f"pool replica {replica}", f"pool replica {replica} {what}")


def _of_pool(at: float, sentence: str) -> Explained:
    return Explained(at, "pool", "pool", sentence)
