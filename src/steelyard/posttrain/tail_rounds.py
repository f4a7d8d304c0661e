"""Rounds under a tail policy: what happens on the engines is told to it, and what it wants is done there.

A round is one training step's rollout, and one round is open at a time. It opens as soon as the one before is over, up
to ``ahead`` weight versions early, so that whatever is carried over from it can still be trained on. Admission counts
whose weights made what: groups that would be too old for the step that is gathered are given up before its round opens.
So the bound on staleness holds with every policy, at the price of the tokens that are thrown away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from steelyard.balance.admission import (
    Admission,
    AdmissionEvent,
    BatchWanted,
    Discard,
    Gathering,
    TrainOn,
    WeightsPublished,
)
from steelyard.balance.events import Aborted, Begun, Ended, Generated, GivenUp, Paused, Returned
from steelyard.balance.log import Journal, noted
from steelyard.balance.tail import (
    AbortRest,
    Cap,
    Defer,
    Repack,
    Resume,
    Room,
    RoundBegan,
    StartAgain,
    StartMore,
    Tail,
    TailCommand,
    TailEvent,
    Train,
)
from steelyard.posttrain.attempt import Attempt, Part, Parts, least_part
from steelyard.posttrain.draws import Draws, Foresee, Prompt
from steelyard.posttrain.learnt import learnt
from steelyard.posttrain.record import LoopRecord
from steelyard.posttrain.rollout import RolloutStage, StageEvent
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.tails import policy_of
from steelyard.records import Trajectory

_ANY = 1 << 60  # samples or groups: as many as the policy likes


class TailRounds:
    """Between a rollout stage, a tail policy and admission; the loop asks it for batches."""

    def __init__(
        self,
        setup: PosttrainSetup,
        stage: RolloutStage,
        record: LoopRecord,
        foresee: Foresee,
        journal: Journal | None = None,
    ) -> None:
        scenario, asked = setup.scenario, setup.scenario.trajectories
        self._scenario, self._stage, self._record = scenario, stage, record
        self._groups, self._size = asked.prompts, asked.group
        self._draws = Draws(setup.tasks, foresee)
        self._tail = Tail(policy_of(scenario.tail), stage.core.rollouts)
        admission = Admission(_ANY, self._groups * self._size, scenario.behind, size=self._size)
        self._ask_tail = noted(journal, "tail", self._tail.decide)
        self._ask_admission = noted(journal, "admission", admission.decide)
        self._prompts: dict[str, Prompt] = {}  # by name, of groups that are neither trained on nor given up
        self._homes: dict[str, Prompt] = {}  # of every sample that somebody still wants
        self._ended: dict[str, Attempt] = {}  # of these, those that have
        self._batches: deque[tuple[float, list[Attempt]]] = deque()  # chosen, for the trainer to take
        self._opened = 0  # rounds
        self._open = False
        self._waits = scenario.tail.waits
        self._own: frozenset[str] = frozenset()  # groups that the open round is to train on, where not on any
        self._news: deque[StageEvent] = deque()
        self._busy = False
        stage.watch = self._hear

    # -- what the loop calls ------------------------------------------------------------------------------------

    def begin(self, now: float, version: int) -> None:
        """There are weights of a version: give up what is too old by now, and open what may be."""
        self._busy = True
        self._regulate(WeightsPublished(now, version))
        if not self._opened:
            self._open_round(now)
        batches = min(version + self._scenario.behind + 1, self._scenario.steps)
        while self._waits and self._draws.taken < batches * self._groups:
            self._advise(Room(now, self._groups))
        self._work(now)

    def gather(self, now: float, version: int) -> Parts:
        """Roll out until a round is over; when that was, and what it trains on. In parts, where training takes groups
        as they come: a round trains on whatever was complete before, so that need not wait for its end."""
        given: dict[str, None] = {}  # samples
        least = least_part(self._groups, self._scenario.streaming)
        while not self._batches:
            mark = len(given) // self._size + 2 * least  # the last part is not to be small either
            enough = partial(self._there, mark if mark <= self._groups else _ANY)
            moment = self._stage.run(enough=enough)
            assert enough(), f"step {version}: nobody is left to wait for"
            if not self._batches:
                part = [name for group in self._sure()[:-least] for name in group if name not in given]
                given |= dict.fromkeys(part)
                free = yield Part(max(now, moment), [self._ended[name] for name in part], last=False)
                self._stage.run(until=free)
        moment, batch = self._batches.popleft()
        self._record.batches.append(batch)
        rest = [attempt for attempt in batch if attempt.trajectory.id not in given]
        assert rest and len(rest) + len(given) == len(batch), "a part was not trained on, or all of them before the end"
        yield Part(max(now, moment), rest, last=True)

    def _there(self, groups: int) -> bool:
        """Whether a round is over, or so many groups of it are sure."""
        return bool(self._batches) or (len(self._tail.complete) >= groups and len(self._sure()) >= groups)

    def _sure(self) -> list[tuple[str, ...]]:
        """Groups of the open round that it will train on, come what may."""
        own = [name for name in self._tail.complete if not self._own or name in self._own]
        return [tuple(self._tail.groups[name].done) for name in own[: self._groups]]

    # -- what the stage reports ---------------------------------------------------------------------------------

    def _hear(self, event: StageEvent) -> None:
        """News come in the middle of what they are about, and while commands are carried out: one after the other."""
        self._news.append(event)
        if not self._busy:
            self._busy = True
            self._work(event.at)

    def _work(self, at: float) -> None:
        """Until there is no more news, and no round to be opened, which leads to more of them."""
        while self._news or self._may_open():
            if not self._news:
                self._open_round(at)
                continue
            event = self._news.popleft()
            if isinstance(event, Begun | Generated | Returned | Paused | Ended | Aborted):
                self._take_in(event)
        self._busy = False

    def _take_in(self, event: Begun | Generated | Returned | Paused | Ended | Aborted) -> None:
        prompt = self._homes.get(event.trajectory)
        if prompt is None:  # nobody waits for it any more
            return
        match event:
            case Begun():
                of_group = replace(event, prompt=prompt.name)
                self._regulate(of_group)
                self._advise(of_group)
            case Generated():
                self._regulate(event)
            case Ended():
                self._record.samples += self._stage.done
                self._ended |= {attempt.trajectory.id: attempt for attempt in self._stage.done}
                self._stage.done.clear()
                self._regulate(event)
                self._advise(event)
            case Aborted():
                self._regulate(event)
                self._advise(event)
            case _:
                self._advise(event)

    # -- what admission and the policy want ---------------------------------------------------------------------

    def _may_open(self) -> bool:
        """Each round but the first opens after another, when none of its samples would be too old when trained on."""
        last = min(self._stage.version + self._scenario.ahead, self._scenario.steps - 1)
        return not self._open and 0 < self._opened <= last

    def _open_round(self, at: float) -> None:
        self._open = True
        self._opened, step = self._opened + 1, self._opened
        self._regulate(Gathering(at, step))
        latest = max(0, step - self._scenario.behind)
        own = tuple(prompt.name for prompt in self._prompts.values() if self._waits and prompt.version <= latest)
        self._own = frozenset(own)
        self._advise(RoundBegan(at, step, self._groups, self._size, own))

    def _regulate(self, event: AdmissionEvent) -> None:
        """Tell admission. How many may begin is decided by whole rounds, so its figures for that are left alone."""
        for command in self._ask_admission(event):
            match command:
                case Discard():
                    wanted = [name for name in command.trajectories if name in self._homes]
                    late = dict.fromkeys(self._homes[name].name for name in wanted)
                    self._advise(GivenUp(event.at, tuple(late)))
                    self._drop(wanted, event.at)
                    for name in late:
                        del self._prompts[name]
                case TrainOn():
                    assert isinstance(event, BatchWanted) and set(command.trajectories) == set(event.trajectories)

    def _advise(self, event: TailEvent) -> None:
        for command in self._ask_tail(event):
            self._do(command, event.at)

    def _do(self, command: TailCommand, at: float) -> None:
        match command:
            case StartMore():
                step = self._draws.taken // self._groups if self._waits else self._opened - 1
                self._start(self._draws.more(command.groups), command.samples, step, at, command.first)
            case StartAgain():
                self._start([self._prompts[command.group]], command.samples, self._opened - 1, at)
            case Cap():
                self._stage.cap = command.tokens
            case Resume():
                if command.trajectory in self._stage.running:
                    self._stage.resume(command.trajectory, at, command.priority or None, command.left)
            case AbortRest() if command.resume:
                self._set_aside(command.trajectories, at)
            case AbortRest():
                self._drop(command.trajectories, at)
            case Defer():
                self._defer(command.groups, at)
            case Repack():
                for move in command.moves:
                    self._stage.send(move.trajectory, move.target, at)
                self._stage.close(command.freed, at)
            case Train():
                self._train(command, at)

    def _start(self, prompts: Sequence[Prompt], count: int, step: int, at: float, first: int = 0) -> None:
        """Begin samples as the policy of a step would give them; the first so many of each prompt before all others."""
        trained = learnt(self._scenario.trajectories.learning, self._record)
        samples = self._draws.samples(prompts, count, step, trained)
        for i, prompt in enumerate(prompts):
            prompt.version = min(prompt.version, self._stage.version)
            self._prompts[prompt.name] = prompt
            self._homes |= {each.id: prompt for each in samples[i * count : (i + 1) * count]}
        early: list[Trajectory] = []
        late: list[Trajectory] = []
        for i, each in enumerate(samples):
            (early if i % count < first else late).append(each)
        self._stage.reopen(at)
        self._stage.begin(early + late, at, self._stage.version)

    def _set_aside(self, names: Sequence[str], at: float) -> None:
        """They go on in a later round. Where engines have nothing else to do until then, they need not stop."""
        if self._scenario.synchronous:
            self._stage.pause(names, at)
        for name in names:
            self._advise(Aborted(at, name))

    def _drop(self, names: Sequence[str], at: float) -> None:
        """For ever, with all they have."""
        for name in names:
            del self._homes[name]
            attempt = self._ended.pop(name, None)
            if attempt is None:
                self._stage.abort([name], at)
                attempt = self._stage.stopped.pop()
                self._ask_admission(Aborted(at, name))
            self._record.thrown.append(attempt)

    def _defer(self, groups: Sequence[str], at: float) -> None:
        """Begin anew later; those that have ended are of no use any more, others are stopped by the next command."""
        self._ask_admission(GivenUp(at, tuple(groups)))
        given_up = set(groups)
        ended = [name for name in self._ended if self._homes[name].name in given_up]
        self._drop(ended, at)

    def _train(self, command: Train, at: float) -> None:
        names = tuple(name for group in command.groups for name in group)
        self._regulate(BatchWanted(at, names))
        for group in command.groups:
            del self._prompts[self._homes[group[0]].name]
        for name in names:
            del self._homes[name]
        self._batches.append((at, [self._ended.pop(name) for name in names]))
        self._open = False
        self._stage.reopen(at)
