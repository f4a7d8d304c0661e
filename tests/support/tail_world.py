"""A random world around a tail policy: samples that end, are stopped and lost in any order."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from steelyard.balance.events import Aborted, Begun, Ended, Returned
from steelyard.balance.rollouts import Rollouts
from steelyard.balance.tail import (
    AbortRest,
    Cap,
    Divided,
    OverSampling,
    PartialRollout,
    Paused,
    Plain,
    Repacking,
    Resume,
    RoundBegan,
    StartAgain,
    StartMore,
    Tail,
    TailBatching,
    TailCommand,
    TailEvent,
    TailPolicy,
    Train,
)
from steelyard.records import Turn

POLICIES: dict[str, Callable[[], TailPolicy]] = {
    "plain": Plain,
    "over-sampling": lambda: OverSampling(1.5),
    "tail batching": TailBatching,
    "divided": lambda: Divided(100),
    "partial": lambda: PartialRollout(100),
    "repack": lambda: Repacking(OverSampling(1.5)),
}


class World:
    """Carries commands out with delays, and keeps books of its own."""

    def __init__(self, policy: TailPolicy, dice: Random) -> None:
        self.tail, self.dice = Tail(policy, Rollouts()), dice
        self.partial, self.defers = isinstance(policy, PartialRollout), isinstance(policy, TailBatching)
        self.to_begin: list[str] = []  # groups, once for each sample
        self.group: dict[str, str] = {}
        self.state: dict[str, str] = {}
        self.told_to_stop: dict[str, bool] = {}  # whether for a while only
        self.trained: set[str] = set()
        self.trained_groups: set[str] = set()
        self.prompts = self.step = 0
        self.wanted, self.size = 3, 2
        self.open = self.capped = False
        self.log: list[tuple[TailEvent, list[TailCommand]]] = []

    def tell(self, event: TailEvent) -> None:
        commands = self.tail.decide(event)
        self.log.append((event, commands))
        for command in commands:
            self.do(command)

    def do(self, command: TailCommand) -> None:
        match command:
            case Cap():
                self.capped = command.tokens is not None
            case StartMore():
                names = [f"p{self.prompts + i}" for i in range(command.groups)]
                self.prompts += command.groups
                self.to_begin += names * command.samples
            case StartAgain():
                self.to_begin += [command.group] * command.samples
            case Resume():
                assert self.state[command.trajectory] == "stopped", "resumed while it runs, or after its end"
                self.state[command.trajectory] = "running"
            case AbortRest():
                for name in command.trajectories:
                    assert self.state[name] in ("running", "stopped") and name not in self.trained
                    if self.state[name] == "stopped" and not command.resume:
                        self.state[name] = "dropped"
                    else:
                        self.told_to_stop[name] = command.resume
            case Train():
                self.train(command)

    def train(self, command: Train) -> None:
        assert self.open and command.step == self.step
        assert len(command.groups) == self.wanted or (self.partial and 0 < len(command.groups) <= self.wanted)
        for names in command.groups:
            assert len(names) == self.size and len({self.group[name] for name in names}) == 1, "part of a group"
            assert all(self.state[name] == "ended" for name in names)
            assert not self.trained & set(names), "trained on twice"
            assert self.group[names[0]] not in self.trained_groups, "a prompt twice"
            self.trained |= set(names)
            self.trained_groups.add(self.group[names[0]])
        self.open = False

    def next_round(self) -> None:
        self.step += 1
        self.open = True
        self.tell(RoundBegan(0.0, self.step, self.wanted, self.size))

    def begin(self) -> None:
        group = self.to_begin.pop(self.dice.randrange(min(4, len(self.to_begin))))
        name = f"{group}/{len(self.state)}"
        self.group[name], self.state[name] = group, "running"
        self.tell(Begun(0.0, name, "p", 10, group=group))

    def happen(self, faults: bool) -> None:
        """One of all the things that could."""
        running = [name for name, state in self.state.items() if state == "running"]
        kinds = [self.begin] * min(2, len(self.to_begin))
        if running:
            name = self.dice.choice(running)
            kinds += [lambda: self.stop(name)] * 2 if name in self.told_to_stop else []
            kinds += [lambda: self.end(name)]
            kinds += [lambda: self.tell(Returned(0.0, name, 1, Turn(7)))]
            kinds += [lambda: self.pause(name)] if self.capped and name not in self.told_to_stop else []
            kinds += [lambda: self.lose(name)] if faults and name not in self.told_to_stop else []
        stopped = [name for name, state in self.state.items() if state == "stopped"]
        if stopped and faults:
            kinds += [lambda: self.lose(self.dice.choice(stopped))]
        if not self.open:
            kinds += [self.next_round]
        self.dice.choice(kinds)()

    def stop(self, name: str) -> None:
        self.state[name] = "stopped" if self.told_to_stop.pop(name) else "dropped"
        self.tell(Aborted(0.0, name, 1))

    def end(self, name: str) -> None:
        told = name in self.told_to_stop
        self.state[name] = "ended" if self.told_to_stop.pop(name, True) else "dropped"
        for _ in range(self.dice.choice((1, 1, 2))):  # some things are told twice
            self.tell(Ended(0.0, name, 1, Turn(5)))
        if told:
            self.tell(Aborted(0.0, name, 1))

    def pause(self, name: str) -> None:
        self.state[name] = "stopped"
        self.tell(Paused(0.0, name, 1, self.dice.randint(1, 500)))

    def lose(self, name: str) -> None:
        self.state[name] = "lost"
        self.tell(Aborted(0.0, name, 1))

    def check(self) -> None:
        """Every sample is in one place, every prompt in one place."""
        deferred = set(self.tail.deferred)
        for name, state in self.state.items():
            group = self.tail.homes.get(name)
            places = (
                [] if group is None else [name in s for s in (group.running, group.stopping, group.held, group.done)]
            )
            if name in self.trained or state in ("lost", "dropped") or not self.told_to_stop.get(name, True):
                assert group is None
            elif group is not None:
                assert sum(places) == 1 and places[3] == (state == "ended")
                assert group.name == self.group[name] and self.tail.groups[group.name] is group
            else:  # an ended sample of a prompt that was deferred begins anew with it
                assert state == "ended" and self.defers
        if self.tail._round is not None:
            assert self.tail._round.running == sum(len(group.running) for group in self.tail.groups.values())
        begun = set(self.group.values())
        assert begun <= self.trained_groups | set(self.tail.groups) | deferred | set(self.to_begin), "a prompt is lost"
        assert not self.trained_groups & set(self.tail.groups) and not self.trained_groups & deferred
        assert not deferred & set(self.tail.groups)
