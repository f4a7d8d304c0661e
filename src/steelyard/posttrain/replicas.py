"""Rollout engines side by side, and when to run each of them next."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nextafter

from steelyard.balance.events import ReplicaUp
from steelyard.engine import ABORTED, FINISHED, REJECTED, BlockNames, BriefLog, Engine, Request
from steelyard.errors import UserError
from steelyard.fleet.environment import Environment
from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.engines import EngineKind
from steelyard.posttrain.turns import MORE_ROOM

# Kinds of events, by priority at the same second. Engines decide after all submissions; training continues when all
# other events of that second have been handled.
DUE, END, RETURN, MOVED, SUBMIT, WAKE, LAST = range(7)
Happening = tuple[float, int, int, str, int]
"""(second, kind of event, replica, trajectory, ticket)."""


class Replicas:
    """Engines by number. They put the ends of their requests on the agenda, and bounds of the next ones."""

    def __init__(self, kinds: Mapping[int, EngineKind], names: BlockNames, clock: Environment[Happening]) -> None:
        self.kinds = kinds
        self.engines: dict[int, Engine] = {}
        self.logs: dict[int, BriefLog] = {}
        self.tp: dict[int, int] = {}
        self.requests: dict[int, Attempt] = {}  # by request: its trajectory
        self._names = names
        self._clock = clock
        self.wakes: dict[int, int] = {}  # by replica: ticket of its latest wake-up; others are outdated
        self._bounds: dict[int, float] = {}  # by replica: second of its pending wake-up
        self._closed: dict[int, float] = {}  # by closed replica: when it was closed
        self._epochs: dict[int, int] = {}  # by replica: number of its starts
        self.freed_gpu_seconds = 0.0

    def kind(self, number: int) -> EngineKind:
        return self.kinds[self.tp[number]]

    def move_seconds(self, source: int, target: int, tokens: int) -> float:
        """Seconds to move this many cached tokens from one replica to another."""
        return self.kind(target).move_seconds(self.kind(source), tokens)

    def add(self, number: int, tp: int, at: float) -> ReplicaUp:
        """Start an engine."""
        log = self.logs[number] = BriefLog()
        engine = self.kinds[tp].engine(self._names, log)
        engine.clock = at
        self.engines[number], self.tp[number] = engine, tp
        self.wakes[number] = self.wakes.get(number, 0) + 1
        return self._up(number, at)

    def remove(self, number: int, at: float) -> tuple[list[tuple[Attempt, Request]], int | None]:
        """Remove an engine. Returns its unfinished requests with their trajectories, and its epoch if it was open."""
        lost = [r for r in self.run_to(number, at).crash(at) if r.index in self.requests]
        del self.engines[number], self.logs[number], self.tp[number]
        self._bounds.pop(number, None)
        self.wakes[number] += 1
        epoch = self._epochs[number] if self._closed.pop(number, None) is None else None
        return [(self.requests.pop(r.index), r) for r in lost], epoch

    def close(self, number: int, at: float) -> int | None:
        """Close an engine until it is opened again. Returns its epoch, if it was open."""
        if number in self._closed:
            return None
        self._closed[number] = at
        return self._epochs[number]

    def reopen(self, at: float) -> list[ReplicaUp]:
        """Open all closed engines."""
        self.freed_gpu_seconds += sum(self.tp[number] * (at - since) for number, since in self._closed.items())
        opened = [self._up(number, at) for number in self._closed]
        self._closed.clear()
        return opened

    def submit(self, number: int, r: Request, at: float) -> None:
        """Submit a request to an engine."""
        self.run_to(number, at).submit(r, at)
        self.sleep(number)

    def take_off(self, number: int, r: Request, at: float) -> None:
        """Stop a request, unless it has ended."""
        engine = self.run_to(number, at)
        if r.status < FINISHED:
            engine.abort(r, at)
            engine.finished.remove(r)
            self.logs[number].seen((r,))
            self.sleep(number)

    def run_to(self, number: int, now: float) -> Engine:
        """Run an engine up to a second, and return it."""
        engine = self.engines[number]
        engine.advance(now)
        if engine.finished:
            self._collect(number)
        return engine

    def wake(self, number: int, now: float) -> None:
        """Run an engine up to the next event of any other, or at least through its next decision."""
        del self._bounds[number]
        until = self._clock.horizon
        engine = self.engines[number]
        engine.advance(until if until > now else nextafter(now, inf))
        if engine.finished:
            self._collect(number)
        self.sleep(number)

    def sleep(self, number: int) -> None:
        """Look at an engine again when its next request may end."""
        bound = self.engines[number].next_end_bound()
        if bound == self._bounds.get(number):
            return  # this wake-up is on the agenda already
        self._bounds[number] = bound
        ticket = self.wakes[number] = self.wakes[number] + 1
        if bound < inf:
            self._clock.schedule((bound, WAKE, number, "", ticket))

    def outputs(self, number: int, r: Request) -> int:
        """Output tokens of a request so far. Does not interrupt the stretch that it decodes in."""
        return self.engines[number].step - r.offset + 1 - r.prompt if r.grouped else r.outputs

    def _collect(self, number: int) -> None:
        engine = self.engines[number]
        for r in engine.finished:
            attempt = self.requests.get(r.index)
            if attempt is None:
                continue
            if r.status == REJECTED:
                raise UserError(
                    f"trajectory {attempt.trajectory.id}: a turn of {r.prompt + r.output:,} tokens was rejected by an "
                    f"engine of TP{self.tp[number]}: {engine.log.given_up[r.index][1]}; {MORE_ROOM}"
                )
            if r.status in (FINISHED, ABORTED):
                self._clock.schedule((engine.end_of(r), END, number, attempt.trajectory.id, r.index))
        self.logs[number].seen(engine.finished)
        engine.finished.clear()

    def _up(self, number: int, at: float) -> ReplicaUp:
        limits = self.kind(number).limits
        epoch = self._epochs[number] = self._epochs.get(number, -1) + 1
        return ReplicaUp(at, number, self.tp[number], limits.max_num_seqs, limits.room, epoch)
