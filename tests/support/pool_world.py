"""A random world around the hybrid pool: messages are lost, late and repeated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from random import Random

import pytest

from steelyard.balance.pool import (
    Activate,
    Drain,
    Drained,
    Failed,
    Fetch,
    Fetched,
    Gradient,
    HybridPool,
    Join,
    JoinAccepted,
    Leave,
    MemberState,
    Patience,
    PoolCommand,
    PoolEvent,
    Reduce,
    RollBack,
    Rule,
    Serving,
    StepBegan,
    StepEnded,
    Sync,
    Synced,
    Tick,
    View,
)

CORE = {0: (0, 1), 1: (2, 3)}
HYBRID = {2: (4, 5), 3: (6, 7), 4: (8, 9)}


class Told:
    """Does what the measured times say outright: so many seconds more training, so many replicas."""

    def change(self, view: View) -> int:
        return max(-view.lent, min(round(view.measured.train - view.measured.rollout), view.idle))


def ended(
    step: int,
    train: float = 100.0,
    rollout: float = 100.0,
    at: float = 0.0,
    *,
    seconds: float | None = None,
    pressure: float = 0.5,
    longest: float = 0.0,
) -> StepEnded:
    return StepEnded(at, step, train, rollout, max(train, rollout) if seconds is None else seconds, pressure, longest)


def make(rule: Rule, **more: object) -> HybridPool:
    return HybridPool(CORE, HYBRID, engines=4, rule=rule, **more)  # type: ignore[arg-type]


@dataclass
class Hands:
    """Who really holds a replica's GPUs, and what is going on with them."""

    holders: set[str] = field(default_factory=lambda: {"engine"})
    doing: PoolCommand | None = None
    fetched: tuple[int, int] | None = None  # step and version of the state it holds


class World:
    """Carries commands out, some never; sends answers, which arrive in any order, several times or not at all."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pool = self.fresh_pool()
        self.log: list[tuple[PoolEvent, list[PoolCommand]]] = []
        self.hands = {number: Hands() for number in HYBRID}
        self.post: list[PoolEvent] = []
        self.step, self.version = -1, 0
        self.open = False  # whether this step's gradients are still to be added up
        self.redone = 0

    @staticmethod
    def fresh_pool() -> HybridPool:
        return make(Told(), patience=Patience(*(100.0,) * 8, rest=1))

    def tell(self, event: PoolEvent) -> None:
        """As a driver does: whenever patience runs out, a tick comes first."""
        while self.pool.wake_at < event.at:
            self.decide(Tick(self.pool.wake_at))
        self.decide(event)

    def decide(self, event: PoolEvent) -> None:
        commands = self.pool.decide(event)
        self.log.append((event, commands))
        self.do(commands)

    def do(self, commands: list[PoolCommand]) -> None:
        for command in commands:
            if isinstance(command, Reduce):
                self.check_reduce(command)
                continue
            hands = self.hands[command.replica]
            if isinstance(command, Join):
                assert not hands.holders, "a replica joins whose engines still run"
                hands.holders.add("trainer")
                self.post.append(JoinAccepted(self.now, command.replica, command.epoch))
            if isinstance(command, RollBack):
                hands.holders.discard("trainer")
            if isinstance(command, Sync):
                assert hands.fetched == (self.step, self.version), "it goes along with the state of another step"
            if isinstance(command, Activate):
                assert hands.holders == {"trainer"}
            hands.doing = command

    def check_reduce(self, command: Reduce) -> None:
        weights = dict(command.weights)
        assert sum(weights.values()) == pytest.approx(1.0)
        assert set(CORE) <= set(weights)
        assert command.step == self.step and command.version == self.version
        for number, weight in weights.items():
            if number in HYBRID:
                state = self.pool.members[number].state
                assert state is (MemberState.ACTIVE if weight else MemberState.SYNCING)
                assert self.hands[number].holders == {"trainer"}
        assert self.open, "a step's gradients are added up twice"
        self.open = False
        self.redone += len(command.redo)

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick(self.now))

    def begin(self) -> None:
        self.step, self.version = self.step + 1, self.version + 1
        self.open = True
        self.tell(StepBegan(self.now, self.step, self.version))

    def end(self, wish: int) -> None:
        self.tell(ended(self.step, train=100.0 + wish, at=self.now))

    def gradient(self, number: int, tokens: int, wrong: tuple[int, int, int] = (0, 0, 0)) -> None:
        epoch = self.pool.members[number].epoch if number in HYBRID else 0
        dropped = self.pool.dropped.total()
        self.tell(Gradient(self.now, number, epoch - wrong[0], self.step - wrong[1], self.version - wrong[2], tokens))
        assert wrong == (0, 0, 0) or self.pool.dropped.total() == dropped + 1

    def goes_well(self, number: int) -> None:
        """What a replica was told comes to its end, and it says so."""
        hands = self.hands[number]
        command, hands.doing = hands.doing, None
        match command:
            case Drain():
                hands.holders.discard("engine")
                self.post.append(Drained(self.now, number, command.epoch))
            case Join() | Fetch():
                hands.fetched = command.step, command.version
                self.post.append(Fetched(self.now, number, command.epoch, command.step, command.version))
            case Sync():
                hands.doing = command  # it says so at every exchange
                self.post.append(Synced(self.now, number, command.epoch, self.step, self.version))
            case Leave() | RollBack():
                hands.holders.discard("trainer")
                hands.holders.add("engine")
                self.post.append(Serving(self.now, number, command.epoch))

    def goes_wrong(self, number: int, stale: bool) -> None:
        self.tell(Failed(self.now, number, self.pool.members[number].epoch - stale, "broken"))

    def arrives(self, index: int, again: bool) -> None:
        event = self.post[index] if again else self.post.pop(index)
        self.tell(replace(event, at=self.now))

    def check(self) -> None:
        """Every GPU has one role, its replica's, and really belongs to whom the pool thinks it does."""
        assert all(len(hands.holders) <= 1 for hands in self.hands.values())
        roles = self.pool.roles()
        assert set(roles) == {gpu for gpus in (*CORE.values(), *HYBRID.values()) for gpu in gpus}
        for number, gpus in HYBRID.items():
            assert len({roles[gpu] for gpu in gpus}) == 1, "half a replica"
            if roles[gpus[0]] == "training":
                assert self.hands[number].holders == {"trainer"}
            if self.pool.members[number].state is MemberState.ROLLOUT:
                assert self.hands[number].holders == {"engine"}
        assert all(roles[gpu] == "training" for gpus in CORE.values() for gpu in gpus)

    def settle(self) -> None:
        """Nothing ever arrives again but engines that start: all that set out has arrived or turned back."""
        self.post.clear()
        for _ in range(20):
            if self.pool.wake_at < inf:
                self.now = self.pool.wake_at
                self.tell(Tick(self.now))
            for number, hands in self.hands.items():
                if isinstance(hands.doing, RollBack):
                    self.goes_well(number)
            for event in self.post:
                self.tell(event)
            self.post.clear()
        assert all(not member.moving for member in self.pool.members.values())
        assert all(entry.outcome != "under way" and entry.ended is not None for entry in self.pool.ledger.entries)


def random_event(world: World, dice: Random) -> None:
    number = dice.choice(list(HYBRID))
    match dice.choices(range(9), (4, 1, 5, 3, 12, 6, 1, 12, 1))[0]:
        case 0:
            world.time_passes(dice.expovariate(0.2))
        case 1:
            world.time_passes(100.0)
        case 2:
            world.begin()
        case 3 if world.step >= 0:
            world.end(dice.randint(-3, 3))
        case 4 if world.step >= 0:
            wrong = (dice.random() < 0.1, dice.random() < 0.1, dice.random() < 0.1)
            world.gradient(dice.choice([*CORE, *HYBRID]), dice.randint(1, 100), wrong)
        case 5:
            world.goes_well(number)
        case 6:
            world.goes_wrong(number, dice.random() < 0.7)
        case 7 if world.post:
            world.arrives(dice.randrange(len(world.post)), dice.random() < 0.3)
        case 8 if world.post:
            world.post.pop(dice.randrange(len(world.post)))  # lost
