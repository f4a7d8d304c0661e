"""Rounds under a tail policy: the policy gets the engines' events, and its answers become commands.

A round is one training step's rollout. One round is open at a time. It opens as soon as the one before is over, up to
``lead`` weight versions early, so that samples carried over from it can still be trained on. Admission tracks which
weights generated which tokens: groups that would be too stale for a step are dropped before its round opens. So the
bound on staleness holds with every policy, at the price of dropped tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from steelyard.balance.admission import Admission, AdmissionEvent, BatchChosen, BatchWanted, Discard, Gathering
from steelyard.balance.commands import (
    Abort,
    Cap,
    Pause,
    Reconfigure,
    Reopen,
    Repack,
    Resume,
    RoundCommand,
    Start,
    TrainOn,
)
from steelyard.balance.events import (
    Aborted,
    Begun,
    Ended,
    Generated,
    PartTrained,
    Paused,
    Returned,
    StepTrained,
    TrainerReady,
    WeightsPublished,
)
from steelyard.balance.rollouts import Rollouts
from steelyard.balance.rounds.protocol import RoundInput, RoundSettings
from steelyard.balance.tail import (
    AbortRest,
    Defer,
    Room,
    RoundBegan,
    StartAgain,
    StartMore,
    Tail,
    TailCommand,
    TailEvent,
    TailPolicy,
    Train,
)
from steelyard.balance.tail.events import GivenUp

_ANY = 1 << 60  # samples: as many as the policy likes


class TailRounds:
    """Connects the rollout, a tail policy and admission."""

    counts_tokens = True

    def __init__(self, settings: RoundSettings, policy: TailPolicy, rollouts: Rollouts) -> None:
        self._settings = settings
        self._rollouts = rollouts
        self._tail = Tail(policy, rollouts)
        self._admission = Admission(
            _ANY, settings.groups * settings.size, settings.staleness, size=settings.size
        )  # rounds decide how many may begin, so its `Admit` is not used
        self._version = 0  # of the engines' weights
        self._taken = 0  # prompts that were started
        self._groups: dict[str, float] = {}  # neither trained on nor dropped: the version of each one's oldest sample
        self._coming: dict[str, int] = {}  # samples of each that were started and have not begun
        self._group_of: dict[str, str] = {}  # by sample that is still wanted
        self._ended: dict[str, None] = {}  # samples among these that have ended
        self._pausing: set[str] = set()  # commanded to pause, so the policy need not get their reports
        self._batches: deque[tuple[str, ...]] = deque()  # chosen, for the training job to take
        self._opened = 0  # rounds
        self._open = False
        self._repacked: Repack | None = None  # the last one, until replicas are opened again
        self._merged = False  # whether replicas are merged
        self._closed: dict[int, int] = {}  # epochs of the replicas that were freed or merged
        self._reopened: dict[int, int] = {}  # epochs of the replicas that were opened again last
        self._commanded_at = -inf  # time of the last change of replicas
        self._own: frozenset[str] = frozenset()  # groups that the open round may train on; any if empty
        self._step = -1  # the step that the training job gathers samples for
        self._part = 0
        self._given: dict[str, None] = {}  # its samples that were handed out
        self._waiting = False  # whether the training job waits for a part
        self._commands: list[RoundCommand] = []

    def decide(self, event: RoundInput) -> list[RoundCommand]:
        self._commands = []
        if isinstance(event, StepTrained):
            self._version = max(self._version, event.step + 1)
            return []
        if isinstance(event, WeightsPublished):
            self._publish(event)
        elif isinstance(event, TrainerReady):
            if event.step > self._step:
                self._step, self._part, self._waiting = event.step, 0, True
                self._given = {}
        elif isinstance(event, PartTrained):
            self._waiting |= (event.step, event.part + 1) == (self._step, self._part) and bool(self._given)
        elif isinstance(event, Generated | Begun | Returned | Paused | Ended | Aborted):
            self._take_in(event)
        while self._may_open() and self._carried_out(event.at):
            self._open_round(event.at)
        self._hand_out()
        return self._commands

    def unfinished(self) -> list[str]:
        return list(dict.fromkeys([*self._groups, *self._coming]))

    # What the training job wants

    def _hand_out(self) -> None:
        """Give training a round that is over or, with streaming, a part of the open one: a round trains on groups in
        order of completion, so the first ones need not wait for its end."""
        if not self._waiting:
            return
        settings, given = self._settings, self._given
        if self._batches:
            batch = self._batches.popleft()
            rest = tuple(name for name in batch if name not in given)
            self._given = {}
            self._give(rest, last=True)
            return
        least = settings.least_part
        enough = len(given) // settings.size + 2 * least  # so that the last part is not small either
        if enough > settings.groups or len(self._tail.complete) < enough:
            return
        sure = self._sure()
        if len(sure) >= enough:
            part = tuple(name for group in sure[:-least] for name in group if name not in given)
            given |= dict.fromkeys(part)
            self._give(part, last=False)

    def _give(self, names: tuple[str, ...], last: bool) -> None:
        self._commands.append(TrainOn(self._step, self._part, names, last))
        self._part += 1
        self._waiting = False

    def _sure(self) -> list[tuple[str, ...]]:
        """Groups that the open round is sure to train on."""
        own = [name for name in self._tail.complete if not self._own or name in self._own]
        return [tuple(self._tail.groups[name].done) for name in own[: self._settings.groups]]

    # What is reported

    def _publish(self, event: WeightsPublished) -> None:
        """Drop groups that are too stale now, and begin those that may begin."""
        self._regulate(event)
        if not self._opened:
            self._open_round(event.at)
        settings = self._settings
        batches = min(event.version + settings.staleness + 1, settings.steps)
        while settings.waits and self._taken < batches * settings.groups:
            self._advise(Room(event.at, settings.groups))

    def _take_in(self, event: Generated | Begun | Returned | Paused | Ended | Aborted) -> None:
        name = event.trajectory
        if isinstance(event, Begun) and event.group:
            self._came(event.group)
            if event.group not in self._groups:  # dropped since it was started
                self._commands.append(Abort((name,)))
                return
            self._group_of[name] = event.group
        elif name not in self._group_of:  # not wanted any more
            return
        if isinstance(event, Paused) and name in self._pausing:
            self._pausing.remove(name)
            return
        if isinstance(event, Ended):
            self._ended[name] = None
        if not isinstance(event, Returned | Paused):
            self._regulate(event)
        if not isinstance(event, Generated):
            self._advise(event)

    # Rounds

    def _may_open(self) -> bool:
        """Each round but the first opens after another, when none of its samples would be too stale when trained on,
        and all samples that were started have begun."""
        last = min(self._version + self._settings.lead, self._settings.steps - 1)
        return not self._open and not self._coming and 0 < self._opened <= last

    def _open_round(self, at: float) -> None:
        self._open = True
        self._opened, step = self._opened + 1, self._opened
        self._regulate(Gathering(at, step))
        settings, latest = self._settings, max(0, step - self._settings.staleness)
        own = tuple(name for name, version in self._groups.items() if settings.waits and version <= latest)
        self._own = frozenset(own)
        self._advise(RoundBegan(at, step, settings.groups, settings.size, own))

    # What admission and the policy want

    def _regulate(self, event: AdmissionEvent) -> None:
        for command in self._admission.decide(event):
            if isinstance(command, Discard):
                wanted = [name for name in command.trajectories if name in self._group_of]
                late = dict.fromkeys(self._group_of[name] for name in wanted)
                self._advise(GivenUp(event.at, tuple(late)))
                self._drop(wanted, event.at)
                for name in late:
                    del self._groups[name]
            elif isinstance(command, BatchChosen):
                assert isinstance(event, BatchWanted) and set(command.trajectories) == set(event.trajectories)

    def _advise(self, event: TailEvent) -> None:
        for command in self._tail.decide(event):
            self._do(command, event.at)

    def _do(self, command: TailCommand, at: float) -> None:
        match command:
            case StartMore():
                groups = self._settings.groups
                step = self._taken // groups if self._settings.waits else self._opened - 1
                new = tuple(str(place) for place in range(self._taken, self._taken + command.groups))
                self._taken += command.groups
                self._start(new, command.samples, step, at, command.first)
            case StartAgain():
                self._start((command.group,), command.samples, self._opened - 1, at)
            case Cap():
                self._commands.append(command)
            case Resume():
                if command.trajectory in self._rollouts.running:
                    self._pausing.discard(command.trajectory)
                    self._commands.append(command)
            case AbortRest() if command.resume:
                self._set_aside(command.trajectories, at)
            case AbortRest():
                self._drop(command.trajectories, at)
            case Defer():
                self._defer(command.groups, at)
            case Repack() if self._carried_out(at):
                replicas = self._rollouts.replicas
                self._repacked, self._commanded_at = command, at
                self._closed |= {number: replicas[number].epoch for number in command.freed}
                self._commands.append(command)
            case Reconfigure() if self._carried_out(at):
                self._reconfigure(command, at)
            case Train():
                self._train(command, at)

    def _start(self, groups: tuple[str, ...], samples: int, step: int, at: float, first: int = 0) -> None:
        for name in groups:
            self._groups[name] = min(self._groups.get(name, inf), self._version)
            self._coming[name] = self._coming.get(name, 0) + samples
        self._reopen(at)
        self._commands.append(Start(groups, samples, step, first))

    def _came(self, group: str) -> None:
        left = self._coming.pop(group, 1) - 1
        if left:
            self._coming[group] = left

    def _reconfigure(self, command: Reconfigure, at: float) -> None:
        replicas = self._rollouts.replicas
        self._merged, self._commanded_at = True, at
        self._closed |= {number: replicas[number].epoch for merge in command.merges for number in merge.of}
        self._rollouts.awaited = {merge.number for merge in command.merges}
        self._commands.append(command)

    def _reopen(self, at: float) -> None:
        if self._closed:
            self._reopened, self._closed = self._closed, {}
            self._repacked, self._commanded_at = None, at
            if self._merged:
                self._merged, self._rollouts.awaited = False, set(self._reopened)
            self._commands.append(Reopen())

    def _carried_out(self, at: float) -> bool:
        """Whether the reports about the last change of replicas are in, so that decisions see its effect. Once time
        has passed they are not waited for, since a report may be lost."""
        if at > self._commanded_at:
            return True
        running, replicas = self._rollouts.running, self._rollouts.replicas
        for number, epoch in self._reopened.items():
            if number not in replicas or replicas[number].epoch <= epoch:
                return False
        if self._repacked is None:
            return True
        there = [running.get(move.trajectory) for move in self._repacked.moves]
        arrived = [
            each is None or move.target in (each.replica, each.target)
            for each, move in zip(there, self._repacked.moves, strict=True)
        ]
        return all(arrived) and not any(number in replicas for number in self._closed)

    def _set_aside(self, names: Sequence[str], at: float) -> None:
        """Leave samples for a later round. If engines have nothing else to do until then, the samples do not stop."""
        if self._settings.synchronous:
            self._pausing.update(names)
            self._commands.append(Pause(tuple(names)))
        for name in names:
            self._advise(Aborted(at, name, 0))

    def _drop(self, names: Sequence[str], at: float) -> None:
        """Stop samples for good and drop their tokens."""
        for name in names:
            del self._group_of[name]
            if name in self._ended:
                del self._ended[name]
            else:
                self._admission.decide(Aborted(at, name, 0))
        if names:
            self._commands.append(Abort(tuple(names)))

    def _defer(self, groups: Sequence[str], at: float) -> None:
        """Groups will begin again later. Ended samples are dropped; the others are stopped by the next command."""
        self._admission.decide(GivenUp(at, tuple(groups)))
        given_up = set(groups)
        self._drop([name for name in self._ended if self._group_of[name] in given_up], at)

    def _train(self, command: Train, at: float) -> None:
        names = tuple(name for group in command.groups for name in group)
        self._regulate(BatchWanted(at, names))
        for group in command.groups:
            del self._groups[self._group_of[group[0]]]
        for name in names:
            del self._group_of[name], self._ended[name]
        self._batches.append(names)
        self._open = False
        self._reopen(at)
