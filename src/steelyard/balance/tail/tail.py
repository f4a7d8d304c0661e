"""The bookkeeping of rounds under any policy: only whole groups, no sample lost, none trained on twice."""

from __future__ import annotations

from itertools import islice

from steelyard.balance.commands import Cap, Resume
from steelyard.balance.events import Aborted, Begun, Ended, Paused, Returned
from steelyard.balance.rollouts import Rollouts
from steelyard.balance.tail.commands import AbortRest, Defer, StartAgain, StartMore, TailCommand, Train
from steelyard.balance.tail.events import GivenUp, Room, RoundBegan, TailEvent
from steelyard.balance.tail.groups import Group, Round
from steelyard.balance.tail.policies import Opening, TailPolicy


class Tail:
    """Drives a policy. ``rollouts`` is the core's state of the engines: events are applied there first, then here."""

    def __init__(self, policy: TailPolicy, rollouts: Rollouts) -> None:
        self._policy = policy
        self._rollouts = rollouts
        self._round: Round | None = None
        self._opening = Opening(0, 0)
        self._size = 0
        self._late: dict[str, int] = {}  # by forgotten group: samples that may still begin
        self.groups: dict[str, Group] = {}  # of this round, or carried over to the next one
        self.homes: dict[str, Group] = {}  # the group of every sample
        self.complete: dict[str, None] = {}  # names of complete groups, in order of completion
        self.deferred: list[str] = []

    def decide(self, event: TailEvent) -> list[TailCommand]:
        """Apply an event. Returns the commands that follow, in order."""
        commands = self._open(event) if isinstance(event, RoundBegan) else self._apply(event)
        round_ = self._round
        if round_ is not None:
            for command in self._policy.react(round_, event):
                if isinstance(command, Resume):
                    self._run(self.homes[command.trajectory], command.trajectory)
                commands.append(command)
            if self._policy.over(round_):
                commands += self._close(round_)
        return commands

    # Rounds

    def _open(self, event: RoundBegan) -> list[TailCommand]:
        if self._round is not None:
            raise ValueError(f"round {event.step} begins before round {self._round.step} is over")
        pictures = self._rollouts, self.groups, self.homes, self.complete, self.deferred
        round_ = Round(event.step, event.at, event.groups, event.size, *pictures, frozenset(event.among))
        self._round = round_
        round_.ready = sum(map(round_.may_take, self.complete))
        round_.running = sum(len(group.running) for group in self.groups.values())
        opening, cap_before = self._policy.open(round_), self._opening.cap
        self._opening, self._size = opening, event.size
        commands: list[TailCommand] = [Cap(opening.cap)] if opening.cap != cap_before else []
        for group in self.groups.values():
            commands += [self._run(group, name) for name in tuple(group.held)]
            commands += self._fill(group)
        again, self.deferred[:] = self.deferred[: opening.again], self.deferred[opening.again :]
        commands += [StartAgain(name, opening.samples) for name in again]
        if opening.fresh:
            commands.append(StartMore(opening.fresh, opening.samples, opening.first))
        round_.unbegun += (len(again) + opening.fresh) * opening.samples
        return commands

    def _close(self, round_: Round) -> list[TailCommand]:
        """Train on complete groups, in order of completion; carry or defer the others."""
        self._round = None
        own = list(islice(filter(round_.may_take, self.complete), round_.wanted))
        chosen = [self._forget(self.groups[name]) for name in own]
        commands: list[TailCommand] = [Train(round_.step, tuple(tuple(group.done) for group in chosen))]
        rest = [group for group in self.groups.values() if not group.complete]
        if self._opening.leftovers == "defer" and rest:
            self.deferred += [self._forget(group).name for group in rest]
            commands.append(Defer(tuple(group.name for group in rest)))
        carried = self._opening.leftovers == "carry"
        stopped = tuple(name for group in rest for name in (group.running if carried else group.unfinished))
        if stopped:
            commands.append(AbortRest(stopped, resume=carried))
        for group in rest:
            group.stopping |= group.running
            group.running.clear()
        return commands

    def _forget(self, group: Group) -> Group:
        """Drop a group. Samples of it that still begin are late."""
        del self.groups[group.name]
        self.complete.pop(group.name, None)
        for name in group.tokens:
            del self.homes[name]
        if group.coming:
            self._late[group.name] = self._late.get(group.name, 0) + group.coming
        return group

    # Samples

    def _apply(self, event: Room | Paused | Begun | Returned | Ended | Aborted | GivenUp) -> list[TailCommand]:
        if isinstance(event, Room):
            if self._round is not None:
                self._round.unbegun += event.groups * self._opening.samples
            return [StartMore(event.groups, self._opening.samples, self._opening.first)]
        if isinstance(event, GivenUp):
            for each in event.groups:
                if each in self.groups:
                    self._forget(self.groups[each])
            return []
        name = event.trajectory
        group = self.homes.get(name)
        if isinstance(event, Begun):
            return self._begin(event) if group is None else []
        if group is None or name in group.done:  # not needed any more
            return []
        if isinstance(event, Returned):
            group.tokens[name] += event.turn.generated
            return []
        stopping = name in group.stopping
        if self._round is not None and name in group.running:
            self._round.running -= 1
        group.take_out(name)
        match event:
            case Ended():
                group.tokens[name] += event.turn.generated
                return self._end(group, name)
            case Paused():
                (group.stopping if stopping else group.held)[name] = None
            case Aborted() if stopping:
                group.held[name] = None
                return [self._run(group, name)] if self._round is not None else []
            case Aborted():  # lost
                del self.homes[name], group.tokens[name]
                return self._fill(group) if self._round is not None else []
        return []

    def _begin(self, event: Begun) -> list[TailCommand]:
        """A new sample. If its round is over already, its group waits for the next round or was dropped."""
        name, prompt = event.trajectory, event.group
        if self._round is not None:
            self._round.unbegun = max(0, self._round.unbegun - 1)
        if prompt in self._late:
            self._late[prompt] -= 1
            if not self._late[prompt]:
                del self._late[prompt]
            return [AbortRest((name,), resume=False)]
        group = self.groups.get(prompt)
        if group is None:
            group = self.groups[prompt] = Group(prompt, self._size, name, self._opening.samples)
        group.coming = max(0, group.coming - 1)
        if group.complete:
            return [AbortRest((name,), resume=False)]
        self.homes[name] = group
        group.tokens[name] = 0
        group.held[name] = None
        self._run(group, name)
        return []

    def _end(self, group: Group, name: str) -> list[TailCommand]:
        """A sample has ended. Once a group has enough of them, its other samples are aborted."""
        group.done[name] = None
        if not group.complete:
            return []
        self.complete[group.name] = None
        surplus = group.unfinished
        if self._round is not None:
            self._round.ready += self._round.may_take(group.name)
            self._round.running -= len(group.running)
        for other in surplus:
            group.take_out(other)
            del self.homes[other], group.tokens[other]
        return [AbortRest(surplus, resume=False)] if surplus else []

    def _run(self, group: Group, name: str) -> Resume:
        group.take_out(name)
        group.running[name] = None
        if self._round is not None:
            self._round.running += 1
        return Resume(name)

    def _fill(self, group: Group) -> list[TailCommand]:
        """Start new samples in place of lost ones."""
        lacking = group.lacking
        if not lacking or self._round is None:
            return []
        group.coming += lacking
        self._round.unbegun += lacking
        return [StartAgain(group.name, lacking)]
