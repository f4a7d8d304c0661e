"""A random world around admission: samples that begin, end, are stopped and lost in any order."""

from __future__ import annotations

from random import Random

from steelyard.balance.admission import (
    Admission,
    AdmissionCommand,
    AdmissionEvent,
    Admit,
    BatchChosen,
    BatchWanted,
    Discard,
)
from steelyard.balance.events import Aborted, Begun, Ended, WeightsPublished
from steelyard.records import Turn


class World:
    """Engines that lag behind the trainer, samples that end in any order, are stopped, come back or are replaced."""

    def __init__(self, dice: Random, staleness: int, size: int) -> None:
        self.dice, self.staleness, self.size = dice, staleness, size
        self.batch = 2 * size
        self.concurrency = dice.randint(1, 6) * size
        self.admission = self.fresh()
        self.log: list[tuple[AdmissionEvent, list[AdmissionCommand]]] = []
        self.to_begin: list[str] = []
        self.group: dict[str, str] = {}
        self.start: dict[str, int] = {}
        self.state: dict[str, str] = {}
        self.gone: set[str] = set()  # groups
        self.waits = False
        self.batches = 0
        self.tell(WeightsPublished(0.0, 0))

    def fresh(self) -> Admission:
        return Admission(self.concurrency, self.batch, self.staleness, size=self.size)

    def tell(self, event: AdmissionEvent) -> None:
        commands = self.admission.decide(event)
        self.log.append((event, commands))
        for command in commands:
            match command:
                case Admit():
                    assert command.samples % self.size == 0
                    for _ in range(command.samples // self.size):
                        self.to_begin += [f"g{len(self.group)}.{len(self.to_begin)}"] * self.size
                case BatchChosen():
                    self.train(command)
                case Discard():
                    for name in command.trajectories:
                        assert self.state[name] in ("running", "stopped", "ended", "lost")
                        self.state[name] = "discarded"
                        self.gone.add(self.group[name])

    def train(self, command: BatchChosen) -> None:
        assert self.waits and command.version == self.admission.version
        self.waits = False
        self.batches += 1
        groups = [self.group[name] for name in command.trajectories]
        assert len(groups) == self.batch and all(groups.count(group) == self.size for group in groups)
        for name in command.trajectories:
            assert self.state[name] == "ended", "trained on twice, or before its end"
            assert command.version - self.start[name] <= self.staleness, "the bound is broken"
            self.state[name] = "trained"

    def begin(self, group: str) -> None:
        name = f"{group}/{len(self.state)}"
        self.group[name], self.state[name] = group, "running"
        self.start[name] = self.dice.randint(max(0, self.admission.version - 1), self.admission.version)
        self.tell(Begun(0.0, name, "p", 5, self.start[name], group=group))

    def happen(self, faults: bool) -> None:
        choices = ["begin"] * min(3, len(self.to_begin))
        running = [name for name, state in self.state.items() if state == "running"]
        stopped = [name for name, state in self.state.items() if state == "stopped"]
        lost = [name for name in stopped if self.group[name] not in self.to_begin]
        choices += ["end"] * min(2, len(running)) + ["resume"] * min(1, len(stopped)) + ["replace"] * min(1, len(lost))
        choices += ["want"] if not self.waits else []
        choices += ["publish", "stop"] if faults and running else []
        match self.dice.choice(choices or ["publish"]):
            case "begin":
                self.begin(self.to_begin.pop(self.dice.randrange(min(2 * self.size, len(self.to_begin)))))
            case "end":
                name = self.dice.choice(running)
                self.state[name] = "ended"
                self.tell(Ended(0.0, name, 1, Turn(5)))
            case "stop":
                name = self.dice.choice(running)
                self.state[name] = "stopped"
                self.tell(Aborted(0.0, name, 1))
            case "resume":
                name = self.dice.choice(stopped)
                self.state[name] = "running"
                self.tell(Begun(0.0, name, "p", 5, self.admission.version, group=self.group[name]))
            case "replace":
                name = lost[0]
                self.state[name] = "lost"
                self.begin(self.group[name])
            case "want":
                if self.batches:
                    self.tell(WeightsPublished(0.0, self.admission.version + 1))
                self.waits = True
                self.tell(BatchWanted(0.0))
            case "publish":
                self.tell(WeightsPublished(0.0, self.admission.version + self.dice.randint(1, 2)))

    def check(self) -> None:
        states = list(self.state.values())
        admission = self.admission
        assert admission.running == states.count("running")
        assert admission.stopped == states.count("stopped")
        assert admission.accepted == states.count("trained") + states.count("ended")
        allowed = (self.staleness + admission.version + 1) * self.batch
        assert admission.accepted + admission.running + admission.stopped <= allowed
        assert sum(admission.trained.values()) == states.count("trained")
        assert sum(admission.dropped.values()) <= states.count("discarded")  # late ones are in no histogram
        assert max(admission.trained, default=0) <= self.staleness
