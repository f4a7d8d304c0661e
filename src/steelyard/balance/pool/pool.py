"""The elastic hybrid pool: whole training replicas that work for rollout while training does not need them.

Core replicas never change. A hybrid replica drains its engines and joins training in the background. It takes part in
exchanges with weight 0 until it has the same state as all others, and counts from the next barrier on. Nothing waits
for it meanwhile. If a move fails or takes too long, the whole replica goes back to rollout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from steelyard.balance.pool.commands import Activate, Drain, Fetch, Join, Leave, PoolCommand, Reduce, RollBack, Sync
from steelyard.balance.pool.events import (
    Answer,
    Drained,
    Failed,
    Fetched,
    Gradient,
    JoinAccepted,
    PoolEvent,
    PoolFormed,
    Serving,
    StepBegan,
    StepEnded,
    Synced,
    Tick,
)
from steelyard.balance.pool.exchange import Exchange
from steelyard.balance.pool.learnt import SWITCH_SECONDS
from steelyard.balance.pool.ledger import Ledger, Reallocation
from steelyard.balance.pool.member import Member, MemberState, Patience, Role
from steelyard.balance.pool.rules import (
    Payoff,
    ProportionalStep,
    Rule,
    Split,
    StepModel,
    Thresholds,
    TimedTraining,
    View,
)
from steelyard.errors import UserError


class HybridPool:
    """Replicas by number with their GPUs. ``core`` replicas always train; ``hybrid`` ones begin in rollout, or in
    training if ``lent`` names them. ``engines`` counts the GPUs of engines that always roll out. ``away`` is the first
    guess of the seconds that a move takes. ``epoch`` is the highest of a pool before it, whose answers are dropped."""

    def __init__(
        self,
        core: Mapping[int, Sequence[int]],
        hybrid: Mapping[int, Sequence[int]],
        *,
        engines: int = 0,
        lent: Sequence[int] = (),
        rule: Rule | None = None,
        model: StepModel | None = None,
        patience: Patience | None = None,
        away: float = SWITCH_SECONDS,
        epoch: int = 0,
    ) -> None:
        self._size = _common_size(core, hybrid)
        self._core = tuple(sorted(core))
        self._gpus = {**core, **hybrid}
        self._engines = engines
        self.members = {number: Member(number, epoch=epoch) for number in sorted(hybrid)}
        for number in lent:
            self.members[number].state = MemberState.ACTIVE
        self.ledger = Ledger(away)
        self.dropped: Counter[str] = Counter()  # events that did not count, by reason
        self._rule = rule or Payoff()
        self._model = model or ProportionalStep()
        self._patience = patience or Patience()
        self._step, self._version = -1, 0
        self._measured = -1  # step that was measured last
        self._exchange: Exchange | None = None
        self._grace = inf  # until when the core waits for gradients of lent replicas
        self._split_begun: Split | None = None  # the split that the present step began with

    @property
    def split(self) -> Split:
        """Replicas that work for each side now."""
        roles = [member.role for member in self.members.values()]
        return Split(len(self._core) + roles.count("training"), self._engines / self._size + roles.count("rollout"))

    @property
    def wake_at(self) -> float:
        """The next deadline, at which a driver sends a tick."""
        return min([self._grace, *(member.deadline for member in self.members.values())])

    @property
    def epoch(self) -> int:
        """The highest of all commands so far."""
        return max((member.epoch for member in self.members.values()), default=0)

    def roles(self) -> dict[int, Role]:
        """What every GPU of the pool works for."""
        core: dict[int, Role] = {gpu: "training" for number in self._core for gpu in self._gpus[number]}
        return core | {gpu: member.role for member in self.members.values() for gpu in self._gpus[member.replica]}

    def decide(self, event: PoolEvent) -> list[PoolCommand]:
        """Apply an event. Returns the commands that follow, without waiting for moves."""
        commands = self._time_out(event.at)
        match event:
            case StepBegan():
                return commands + self._begin(event)
            case Gradient():
                return commands + self._gradient(event)
            case StepEnded():
                return commands + self._end(event)
            case Tick():
                return commands
            case _:
                return commands + self._answer(event)

    # The training job's steps

    def _begin(self, event: StepBegan) -> list[PoolCommand]:
        """A barrier: replicas that are ready count from here on, and those that fetch need newer state."""
        if event.step <= self._step:
            return self._drop("repeated" if event.step == self._step else "late")
        self._step, self._version = event.step, event.version
        commands: list[PoolCommand] = []
        for member in self.members.values():
            if member.state is MemberState.ACTIVATING:
                self._enter(member, MemberState.ACTIVE, event.at)
                self.ledger.done(member.replica, event.at, event.at - member.idle_since)
                commands.append(Activate(member.replica, member.epoch, event.step))
            elif member.state in (MemberState.REQUESTED, MemberState.FETCHING):
                commands.append(Fetch(member.replica, member.epoch, event.step, event.version))
        lent = [number for number, member in self.members.items() if member.state is MemberState.ACTIVE]
        self._exchange = Exchange(event.step, event.version, self._core, lent)
        self._grace = inf
        self._split_begun = self.split
        return commands

    def _gradient(self, event: Gradient) -> list[PoolCommand]:
        exchange = self._exchange
        if exchange is None or (event.step, event.version) != (exchange.step, exchange.version):
            return self._drop()
        member = self.members.get(event.replica)
        if event.epoch != (member.epoch if member else 0) or not exchange.give(event.replica, event.tokens):
            return self._drop()
        if self._grace == inf and exchange.late:
            self._grace = event.at + self._patience.gradient
        return self._reduce()

    def _reduce(self) -> list[PoolCommand]:
        """Sum the gradients once none is awaited any more."""
        exchange = self._exchange
        if exchange is None or not exchange.complete:
            return []
        silent = [number for number, member in self.members.items() if member.state is MemberState.SYNCING]
        self._exchange, self._grace = None, inf
        return [Reduce(exchange.step, exchange.version, exchange.weights(silent), tuple(exchange.redo))]

    def _end(self, event: StepEnded) -> list[PoolCommand]:
        """Between two steps, which is the only time at which replicas are sent to the other side."""
        if event.step != self._step or event.step == self._measured:
            return self._drop("repeated" if event.step == self._measured else "late")
        self._measured = event.step
        self._exchange, self._grace = None, inf
        split = self.split
        if self._split_begun != split or any(member.moving for member in self.members.values()):
            return []  # the measured split is not the one of the next step
        self.ledger.measured(event.seconds)
        rested = [member for member in self.members.values() if member.rests_until <= event.step]
        idle = [member for member in rested if member.state is MemberState.ROLLOUT]
        lent = [member for member in self.members.values() if member.state is MemberState.ACTIVE]
        away = {side: learnt.mean for side, learnt in self.ledger.away.items()}
        change = self._rule.change(View(event, split, len(idle), len(lent), self._model, away))
        gain = self._model.seconds(event, split, split) - self._model.seconds(event, split, split.moved(change))
        chosen = idle[:change] if change > 0 else lent[len(lent) + change :]
        return [self._send(member, event, gain) for member in chosen]

    def _send(self, member: Member, event: StepEnded, gain: float) -> PoolCommand:
        """Send a replica to the other side."""
        member.epoch += 1
        to_training = member.state is MemberState.ROLLOUT
        self._enter(member, MemberState.DRAINING if to_training else MemberState.LEAVING, event.at)
        member.idle_since = event.at
        self.ledger.begin(
            Reallocation(
                member.replica, "training" if to_training else "rollout", event.step, event.at, event.seconds, gain
            )
        )
        return (Drain if to_training else Leave)(member.replica, member.epoch)

    # A replica on its way

    def _answer(self, event: Answer) -> list[PoolCommand]:
        member = self.members.get(event.replica)
        if member is None:
            return self._drop("unknown replica")
        if event.epoch != member.epoch:
            return self._drop("late" if event.epoch < member.epoch else "out of order")
        number, epoch, step, version = member.replica, member.epoch, self._step, self._version
        match member.state, event:
            case MemberState.ROLLOUT, _:
                return self._drop("repeated")
            case _, Failed():
                return self._roll_back(member, event.at, event.reason)
            case MemberState.DRAINING, Drained():
                self._enter(member, MemberState.REQUESTED, event.at)
                member.idle_since = event.at
                return [Join(number, epoch, step, version)]
            case MemberState.REQUESTED, JoinAccepted():
                self._enter(member, MemberState.FETCHING, event.at)
            case MemberState.FETCHING, Fetched() if (event.step, event.version) == (step, version):
                self._enter(member, MemberState.SYNCING, event.at)
                return [Sync(number, epoch, step, version)]
            case MemberState.SYNCING, Synced() if (event.step, event.version) == (step, version):
                self._enter(member, MemberState.ACTIVATING, event.at)
            case MemberState.LEAVING, Serving():
                self._enter(member, MemberState.ROLLOUT, event.at)
                self.ledger.done(number, event.at, event.at - member.idle_since)
            case MemberState.ROLLED_BACK, Serving():
                self._enter(member, MemberState.ROLLOUT, event.at)
            case _:
                return self._drop("out of order")
        return []

    def _roll_back(self, member: Member, at: float, reason: str) -> list[PoolCommand]:
        """Send the whole replica back to rollout. A step that it was part of goes on without it."""
        member.epoch += 1
        member.rests_until = self._step + self._patience.rest
        self._enter(member, MemberState.ROLLED_BACK, at)
        self.ledger.rolled_back(member.replica, at, reason)
        if self._exchange is not None:
            self._exchange.withdraw(member.replica)
        return [RollBack(member.replica, member.epoch), *self._reduce()]

    def _time_out(self, at: float) -> list[PoolCommand]:
        commands: list[PoolCommand] = []
        late = self._exchange.late if self._exchange is not None and self._grace <= at else []
        for member in self.members.values():
            if member.replica in late:
                commands += self._roll_back(member, at, "its gradient took too long")
            elif member.deadline <= at:
                commands += self._roll_back(member, at, f"{member.state} took too long")
        return commands

    def _enter(self, member: Member, state: MemberState, at: float) -> None:
        member.state = state
        member.deadline = at + self._patience.of(state)

    def _drop(self, reason: str = "late") -> list[PoolCommand]:
        self.dropped[reason] += 1
        return []


RuleName = Literal["thresholds", "payoff"]


@dataclass(frozen=True, slots=True)
class PoolRules:
    """How a pool decides. Its replicas follow with `PoolFormed`."""

    rule: RuleName
    overlapped: bool  # whether rollout goes on during training

    def form(self, event: PoolFormed, epoch: int = 0) -> HybridPool:
        """A pool of these replicas. ``epoch`` is the last of the pool before it."""
        return HybridPool(
            dict(event.core),
            dict(event.hybrid),
            engines=event.engines,
            rule=Thresholds() if self.rule == "thresholds" else Payoff(),
            model=TimedTraining(ProportionalStep(overlapped=self.overlapped)),
            epoch=epoch,
        )


def _common_size(core: Mapping[int, Sequence[int]], hybrid: Mapping[int, Sequence[int]]) -> int:
    """GPUs of a replica: the same number for all, since all are replicas of one layout."""
    if not core:
        raise UserError("hybrid pool: there is no core training replica, so there is no job to join")
    replicas = [*core.items(), *hybrid.items()]
    sizes = {len(gpus) for _, gpus in replicas}
    if len(sizes) > 1 or sizes == {0}:
        raise UserError(f"hybrid pool: training replicas must be of one size, found {sorted(sizes)} GPUs")
    owner: dict[int, int] = {}
    for number, gpus in replicas:
        for gpu in gpus:
            if gpu in owner:
                raise UserError(f"hybrid pool: GPU {gpu} is in replica {owner[gpu]} and in replica {number}")
            owner[gpu] = number
    if both := sorted(set(core) & set(hybrid)):
        raise UserError(f"hybrid pool: replica {both[0]} is both core and hybrid")
    return sizes.pop()
