"""The rollout stage in virtual time: real engines, tools between turns, and the decision core that places each turn.

A trajectory's turns are requests that begin with all that came before. What stays cached between them is what the
engine's own prefix cache still holds, unless the core has it moved, kept in the host's memory or dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf, nextafter

from steelyard.balance.commands import Abort, Cache, Park, Place, RolloutCommand
from steelyard.balance.core import RolloutCore
from steelyard.balance.events import (
    Aborted,
    Begun,
    Called,
    Ended,
    Moved,
    ReplicaDown,
    ReplicaUp,
    Returned,
    RolloutEvent,
)
from steelyard.engine import ABORTED, FINISHED, BlockNames, Engine, Request
from steelyard.errors import UserError
from steelyard.posttrain.engines import EngineKind
from steelyard.workload.trajectories import Trajectory, Turn

# In the order in which they happen when they fall together; engines decide after all else.
_END, _RETURN, _MOVED, _SUBMIT, _WAKE = range(5)
_ENDLESS = 1 << 60


@dataclass(slots=True)
class Attempt:
    """A trajectory under way, and how far it has come: whole turns, and tokens of the one it is in.

    ``version`` is that of the weights it began with.
    """

    trajectory: Trajectory
    version: int
    begun: float
    turns: int = 0
    tokens: int = 0
    context: int = 0
    stream: int = 0  # names what follows the prompt in caches, until other weights make that worthless
    cache: Cache = "keep"
    request: Request | None = None  # its turn, once it has been placed
    submitted: bool = False  # whether the engine has it
    replica: int = -1
    ticket: int = 0  # of what it waits for: a tool, a transfer
    ended: float = inf

    @property
    def turn(self) -> Turn:
        """The one it is in, or the tool of which is running."""
        return self.trajectory.turns[self.turns]


class RolloutStage:
    """Engines side by side, the trajectories on them, and a clock that moves when it is run.

    ``core`` decides; whatever it says is carried out here and nothing else is. Engines come and go with `add` and
    `remove`; both, like `begin`, are for moments up to which the stage was run.
    """

    def __init__(self, core: RolloutCore, kinds: Mapping[int, EngineKind], block_size: int = 16) -> None:
        self.core = core
        self.kinds = kinds
        self.engines: dict[int, Engine] = {}
        self.tp: dict[int, int] = {}
        self.running: dict[str, Attempt] = {}
        self.done: list[Attempt] = []  # ended since the caller last looked, in order
        self.stopped: list[Attempt] = []  # aborted, with what they had generated
        self.moves = 0
        self.moved_tokens = 0
        self._names = BlockNames(block_size)
        self._prompts: dict[tuple[str, int], int] = {}
        self._streams = count()
        self._indices = count()
        self._by_index: dict[int, Attempt] = {}
        self._versions: dict[int, int] = {}  # of wake-ups, by replica
        self._heap: list[tuple[float, int, int, str, int]] = []
        self._weights = 0  # how often they were changed: what was cached before is of no use

    # -- what the loop calls ------------------------------------------------------------------------------------

    def add(self, number: int, tp: int, at: float) -> None:
        """An engine of a kind is there from now on."""
        kind = self.kinds[tp]
        engine = kind.engine(self._names)
        engine.clock = at
        self.engines[number], self.tp[number] = engine, tp
        self._versions[number] = self._versions.get(number, 0) + 1
        self._tell(ReplicaUp(at, number, tp, kind.limits.max_num_seqs, kind.limits.blocks * kind.limits.block_size))

    def remove(self, number: int, at: float) -> None:
        """An engine is given up; who is on it goes on somewhere else, without what it had cached."""
        engine = self._run_to(number, at)
        for r in engine.crash(at):
            if r.index in self._by_index:
                self._keep_part(self._by_index.pop(r.index), r)
        del self.engines[number], self.tp[number]
        self._versions[number] += 1
        self._tell(ReplicaDown(at, number))

    def begin(self, trajectories: Iterable[Trajectory | Attempt], at: float, version: int) -> None:
        """Start trajectories, or go on with some that were stopped."""
        for each in trajectories:
            attempt = each if isinstance(each, Attempt) else Attempt(each, version, at)
            self._check_length(attempt.trajectory)
            if attempt.context == 0:
                attempt.context = attempt.trajectory.prompt_tokens
            attempt.stream, attempt.cache = next(self._streams), "keep"
            who = attempt.trajectory
            self.running[who.id] = attempt
            self._tell(Begun(at, who.id, who.prompt, attempt.context, version))

    def _check_length(self, who: Trajectory) -> None:
        most = min(kind.limits.max_model_len for kind in self.kinds.values())
        needed = who.prompt_tokens + who.generated + sum(turn.returned for turn in who.turns[:-1])
        if needed > most:
            raise UserError(
                f"trajectory {who.id} comes to {needed:,} tokens, and engines take {most:,} (engine.max_model_len); "
                "raise it, or set a lower trajectories.budget.context"
            )

    def abort(self, names: Iterable[str], at: float) -> None:
        """Stop trajectories where they are; they are in ``stopped`` at once."""
        for name in list(names):
            attempt = self.running.pop(name)
            self._stop(attempt, at)
            self.stopped.append(attempt)
            self._tell(Aborted(at, name))

    def new_weights(self, at: float, ready: float) -> None:
        """Weights change between two seconds, in which no engine runs; caches of the old ones are worthless."""
        self._weights += 1
        for number in self.engines:
            engine = self._run_to(number, at)
            engine.clock = max(engine.clock, ready)
            self._sleep(number)
        for attempt in self.running.values():
            attempt.stream = next(self._streams)

    def run(self, until: float = inf, wanted: int | None = None) -> float:
        """Go on until a second, until so many are in ``done``, or until nothing is left; where that was."""
        heap = self._heap
        now = 0.0
        while heap and heap[0][0] <= until:
            if wanted is not None and len(self.done) >= wanted:
                return now
            now, kind, number, name, version = heappop(heap)
            if kind == _WAKE:
                if version == self._versions[number]:
                    self._wake(number, now, until)
            elif kind == _END:
                self._turn_over(number, name, version, now)
            elif name in self.running and self.running[name].ticket == version:
                if kind == _RETURN:
                    self._returned(name, now)
                    continue
                if kind == _MOVED:
                    self._tell(Moved(now, name))
                self._submit(number, name, now)
        return now if until == inf else until

    # -- carrying out commands ----------------------------------------------------------------------------------

    def _tell(self, event: RolloutEvent) -> None:
        for command in self.core.decide(event):
            self._do(command, event.at)

    def _do(self, command: RolloutCommand, at: float) -> None:
        match command:
            case Place():
                self._place(command, at)
            case Park():
                self.running[command.trajectory].cache = command.cache
            case Abort():
                self.abort([command.trajectory], at)

    def _place(self, command: Place, at: float) -> None:
        attempt = self.running[command.trajectory]
        if attempt.request is not None:  # the replica that it was on its way to is gone
            self._by_index.pop(attempt.request.index, None)
        kind = self.kinds[self.tp[command.replica]]
        prompt, output = attempt.context, attempt.turn.generated - attempt.tokens
        r = Request(next(self._indices), at, prompt, output, command.priority)
        elsewhere = command.source is not None and command.source != command.replica
        if attempt.cache == "drop" or (elsewhere and command.cache == "drop"):
            attempt.stream = next(self._streams)
        r.chain = self._chain(attempt)
        r.keys = self._names.names(r.chain, prompt)
        attempt.request, attempt.replica, attempt.submitted = r, command.replica, False
        self._by_index[r.index] = attempt
        ready, event = at, _SUBMIT
        if elsewhere and command.cache == "keep":
            assert command.source is not None
            ready, event = at + kind.move_seconds(self.kinds[self.tp[command.source]], prompt), _MOVED
            r.given = prompt
            self.moves += 1
            self.moved_tokens += prompt
        elif attempt.cache == "offload":
            ready = at + kind.fetch_seconds(prompt)
            r.given = prompt
        attempt.cache = "keep"
        attempt.ticket = next(self._indices)
        heappush(self._heap, (ready, event, command.replica, command.trajectory, attempt.ticket))

    def _chain(self, attempt: Attempt) -> tuple[tuple[int, int], ...]:
        who = attempt.trajectory
        key = (who.prompt, self._weights)
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = self._prompts[key] = next(self._streams)
        return ((prompt, who.prompt_tokens), (attempt.stream, _ENDLESS))

    def _submit(self, number: int, name: str, now: float) -> None:
        attempt = self.running[name]
        r = attempt.request
        assert r is not None
        attempt.submitted = True
        self._run_to(number, now).submit(r, now)
        self._sleep(number)

    # -- what engines and tools report --------------------------------------------------------------------------

    def _wake(self, number: int, now: float, until: float) -> None:
        """Run an engine up to the next event of any other, or at least through its next decision."""
        following = self._heap[0][0] if self._heap else inf
        self.engines[number].advance(max(min(following, until), nextafter(now, inf)))
        self._collect(number)
        self._sleep(number)

    def _run_to(self, number: int, now: float) -> Engine:
        engine = self.engines[number]
        engine.advance(now)
        self._collect(number)
        return engine

    def _collect(self, number: int) -> None:
        engine = self.engines[number]
        for r in engine.finished:
            attempt = self._by_index.get(r.index)
            if attempt is not None and r.status in (FINISHED, ABORTED):
                heappush(self._heap, (engine.end_of(r), _END, number, attempt.trajectory.id, r.index))
        engine.finished.clear()

    def _sleep(self, number: int) -> None:
        self._versions[number] += 1
        bound = self.engines[number].next_end_bound()
        if bound < inf:
            heappush(self._heap, (bound, _WAKE, number, "", self._versions[number]))

    def _turn_over(self, number: int, name: str, index: int, now: float) -> None:
        attempt = self._by_index.pop(index, None)
        if attempt is None:
            return
        turn = attempt.turn
        attempt.request = None
        attempt.context += turn.generated - attempt.tokens
        if attempt.turns + 1 == len(attempt.trajectory.turns):
            attempt.turns += 1
            attempt.tokens = 0
            attempt.ended = now
            del self.running[name]
            self.done.append(attempt)
            self._tell(Ended(now, name, turn))
            return
        attempt.tokens = turn.generated
        attempt.ticket = next(self._indices)
        heappush(self._heap, (now + (turn.latency or 0.0), _RETURN, number, name, attempt.ticket))
        self._tell(Called(now, name, turn.generated))

    def _returned(self, name: str, now: float) -> None:
        attempt = self.running[name]
        turn = attempt.turn
        attempt.turns += 1
        attempt.tokens = 0
        attempt.context += turn.returned
        self._tell(Returned(now, name, turn))

    def _stop(self, attempt: Attempt, at: float) -> None:
        """Take a turn off its engine, and keep what it has generated."""
        r = attempt.request
        if r is None:
            return
        if attempt.submitted:
            engine = self._run_to(attempt.replica, at)
            if r.status < FINISHED:
                engine.abort(r, at)
                engine.finished.remove(r)
                self._sleep(attempt.replica)
        self._by_index.pop(r.index, None)
        self._keep_part(attempt, r)

    def _keep_part(self, attempt: Attempt, r: Request) -> None:
        """A turn that goes on elsewhere or later has so many of its tokens already."""
        part = min(r.outputs, attempt.turn.generated - attempt.tokens - 1)
        attempt.tokens += part
        attempt.context += part
        attempt.request = None
        attempt.ticket = -1
