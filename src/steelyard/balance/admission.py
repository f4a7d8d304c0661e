"""How many trajectories may begin, and which of those that have ended are still fresh enough to train on.

The bound is ``staleness`` versions: a trajectory that begins at version v must be trained on by version v + staleness.
Until then the trainer takes staleness + v + 1 batches, so no more than those may begin over all time. That would be
enough if trajectories ended in the order in which they began. But others overtake a long one, however few may begin. So
the bound is checked again whenever there are new weights, and trajectories beyond it are discarded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from steelyard.balance.events import Aborted, Begun, Ended, Generated, WeightsPublished
from steelyard.balance.tail.events import GivenUp
from steelyard.errors import UserError

Measure = Literal["start", "oldest token"]
Late = Literal["wait", "drop", "train"]
"""What happens to samples that would be too stale: training waits for them in time, they are discarded, or they are
trained on all the same."""


def capacity(concurrency: float, running: int, staleness: int, version: int, batch: int, accepted: int) -> float:
    """Samples that may begin now, as in AReaL and Libra. ``accepted`` have ended, over all time."""
    return min(concurrency - running, (staleness + version + 1) * batch - accepted - running)


@dataclass(frozen=True, slots=True)
class Gathering:
    """Samples are gathered for the step that trains weights of this version, which may not exist yet. Samples that
    will be too stale by then can be discarded now."""

    at: float
    version: int


@dataclass(frozen=True, slots=True)
class BatchWanted:
    """The trainer is ready for a batch: of these if a round has chosen them, else of the oldest."""

    at: float
    trajectories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Admit:
    """This many more samples may begin, in whole groups."""

    samples: int


@dataclass(frozen=True, slots=True)
class BatchChosen:
    """A batch for the trainer, which has weights of this version or will have them by then."""

    version: int
    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """Too stale to be trained on: stop those that still run, forget the others."""

    trajectories: tuple[str, ...]


AdmissionEvent = Generated | Gathering | WeightsPublished | BatchWanted | Begun | Ended | Aborted | GivenUp
AdmissionCommand = Admit | BatchChosen | Discard


@dataclass(slots=True)
class Versions:
    """The weights that made a trajectory. If they changed while it ran, it has tokens of several versions."""

    start: int
    tokens: dict[int, int] = field(default_factory=dict)

    def staleness(self, version: int, measure: Measure) -> int:
        """Versions between the weights that made it and those of ``version``. A trajectory queues before its first
        token, so it is at most as stale by its oldest token as by its start."""
        return version - (self.start if measure == "start" else min(self.tokens, default=self.start))


@dataclass(slots=True)
class _Group:
    """Samples of a prompt, trained on or discarded together."""

    name: str
    coming: int  # samples that have not begun yet
    running: dict[str, Versions] = field(default_factory=dict)
    missing: int = 0  # samples that were stopped and were neither resumed nor replaced
    stopped: dict[str, Versions] = field(default_factory=dict)  # all that ever were, to keep their versions
    done: dict[str, Versions] = field(default_factory=dict)

    def staleness(self, version: int, measure: Measure) -> int:
        """Of its stalest sample."""
        there = (*self.running.values(), *self.done.values())
        return max((each.staleness(version, measure) for each in there), default=0)


class Admission:
    """Bounds how many samples begin and how stale they get. At most ``concurrency`` run at a time; a training step
    takes ``batch`` of them, in whole groups of ``size``."""

    def __init__(
        self,
        concurrency: int,
        batch: int,
        staleness: int,
        *,
        size: int = 1,
        measure: Measure = "start",
        late: Late = "drop",
    ) -> None:
        if size < 1 or batch % size or concurrency < size:
            raise UserError(
                f"admission: batch ({batch}) must be a multiple of the group size ({size}), "
                f"and concurrency ({concurrency}) at least that"
            )
        self._concurrency, self._batch, self._staleness, self._size = concurrency, batch, staleness, size
        self._measure: Measure = measure
        self._late: Late = late
        self.version = 0
        self._due = 0  # the version of the step that samples are gathered for
        self.running = self.accepted = self.stopped = 0
        self._granted = 0  # samples that may begin and have not yet
        self._wanted = False
        self._groups: dict[str, _Group] = {}
        self._homes: dict[str, _Group] = {}
        self._ready: dict[str, None] = {}  # groups whose samples have all ended
        self._gone: dict[str, int] = {}  # by discarded group: samples that may still begin
        self.trained: Counter[int] = Counter()  # trajectories by staleness
        self.trained_tokens: Counter[int] = Counter()  # tokens by staleness
        self.dropped: Counter[int] = Counter()

    @property
    def capacity(self) -> int:
        """Samples that may begin now. Stopped samples occupy no engine, but they still count towards the staleness of
        others."""
        accepted = self.accepted + self.stopped
        return int(capacity(self._concurrency, self.running, self._staleness, self.version, self._batch, accepted))

    def versions(self, trajectory: str) -> Versions:
        """The versions of a trajectory that has not been handed out yet."""
        group = self._homes[trajectory]
        return (group.running | group.stopped | group.done)[trajectory]

    def decide(self, event: AdmissionEvent) -> list[AdmissionCommand]:
        """Apply an event: what to discard, what to train on, how many may begin."""
        commands: list[AdmissionCommand] = []
        match event:
            case WeightsPublished():
                self.version = max(self.version, event.version)
                self._due = max(self._due, self.version)
                commands += self._discard(list(self._groups.values()))
            case Gathering():
                self._due = max(self._due, event.version)
                commands += self._discard(list(self._groups.values()))
            case GivenUp():
                for name in event.groups:
                    if name in self._groups:
                        self._drop(self._groups[name])
            case BatchWanted() if event.trajectories:
                chosen = dict.fromkeys(self._homes[name].name for name in event.trajectories if name in self._homes)
                commands += self._hand_out([name for name in chosen if name in self._ready])
            case BatchWanted():
                self._wanted = True
            case Begun():
                commands += self._begin(event)
            case _:
                self._apply(event)
        if self._wanted and len(self._ready) * self._size >= self._batch:
            self._wanted = False
            oldest = sorted(self._ready, key=lambda name: -self._groups[name].staleness(self._due, self._measure))
            commands += self._hand_out(oldest[: self._batch // self._size])
        free = (self.capacity - self._granted) // self._size * self._size
        if free > 0:
            self._granted += free
            commands.append(Admit(free))
        return commands

    def _begin(self, event: Begun) -> list[AdmissionCommand]:
        """A sample begins, is resumed, or replaces one that was lost."""
        name, prompt = event.trajectory, event.group
        group = self._groups.get(prompt)
        if group is None and prompt in self._gone:
            self._granted = max(0, self._granted - 1)
            self._gone[prompt] -= 1
            if not self._gone[prompt]:
                del self._gone[prompt]
            return [Discard((name,))]
        if group is None:
            group = self._groups[prompt] = _Group(prompt, self._size)
        if name in group.running or name in group.done:
            return []
        if name not in group.stopped and group.coming:
            group.coming -= 1
            self._granted = max(0, self._granted - 1)
        elif group.missing:
            group.missing -= 1
            self.stopped -= 1
        group.running[name] = group.stopped.pop(name, Versions(event.version))
        self._homes[name] = group
        self.running += 1
        return self._discard([group])

    def _apply(self, event: Generated | Ended | Aborted) -> None:
        group = self._homes.get(event.trajectory)
        if group is None or event.trajectory not in group.running:
            return
        if isinstance(event, Generated):
            tokens = group.running[event.trajectory].tokens
            tokens[event.version] = max(tokens.get(event.version, 0), event.tokens)
            return
        self.running -= 1
        versions = group.running.pop(event.trajectory)
        if isinstance(event, Aborted):
            group.stopped[event.trajectory] = versions
            group.missing += 1
            self.stopped += 1
            return
        group.done[event.trajectory] = versions
        self.accepted += 1
        if len(group.done) == self._size:
            self._ready[group.name] = None

    def _hand_out(self, names: list[str]) -> list[AdmissionCommand]:
        """Give ready groups to the trainer. They still count as accepted."""
        batch: list[str] = []
        for group in [self._forget(name) for name in names]:
            for name, versions in group.done.items():
                self.trained[versions.staleness(self._due, self._measure)] += 1
                for version, tokens in versions.tokens.items():
                    self.trained_tokens[self._due - version] += tokens
                batch.append(name)
        return [BatchChosen(self._due, tuple(batch))] if batch else []

    def _discard(self, groups: list[_Group]) -> list[AdmissionCommand]:
        """Discard the groups that are beyond the bound, which makes room for others."""
        late: list[str] = []
        for group in groups if self._late == "drop" else []:
            staleness = group.staleness(self._due, self._measure)
            if staleness <= self._staleness:
                continue
            self._drop(group)
            self.dropped[staleness] += len(group.running) + group.missing + len(group.done)
            late += (*group.running, *group.stopped, *group.done)
        return [Discard(tuple(late))] if late else []

    def _drop(self, group: _Group) -> None:
        """Forget a group, so that others may begin in its place."""
        self._forget(group.name)
        self.accepted -= len(group.done)
        if group.coming:
            self._gone[group.name] = group.coming

    def _forget(self, name: str) -> _Group:
        group = self._groups.pop(name)
        self._ready.pop(name, None)
        for sample in (*group.running, *group.stopped, *group.done):
            del self._homes[sample]
        self.running -= len(group.running)
        self.stopped -= group.missing
        return group
