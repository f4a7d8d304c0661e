"""Rollout engines side by side, and when to run each of them next."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nextafter

from steelyard.balance.events import ReplicaUp
from steelyard.engine import ABORTED, FINISHED, BlockNames, Engine, Request
from steelyard.fleet.environment import Environment
from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.engines import EngineKind

# What happens, in the order of priority at the same second. Engines decide after what they are given; training goes on
# when all that happened by then is known.
DUE, END, RETURN, MOVED, SUBMIT, WAKE, LAST = range(7)
Happening = tuple[float, int, int, str, int]
"""(second, which of the above, replica, trajectory, ticket)."""


class Replicas:
    """Engines by number. Those whose requests end put that on the agenda, and when it may next be so."""

    def __init__(self, kinds: Mapping[int, EngineKind], names: BlockNames, clock: Environment[Happening]) -> None:
        self.kinds = kinds
        self.engines: dict[int, Engine] = {}
        self.tp: dict[int, int] = {}
        self.requests: dict[int, Attempt] = {}  # the trajectory of each awaited request
        self._names = names
        self._clock = clock
        self.wakes: dict[int, int] = {}  # tickets of the last wake-up; one with another ticket is out of date
        self._bounds: dict[int, float] = {}  # and the second of it, until it has come
        self._closed: dict[int, float] = {}  # since when nothing is placed there
        self._epochs: dict[int, int] = {}  # how often each has come up
        self.freed_gpu_seconds = 0.0

    def kind(self, number: int) -> EngineKind:
        return self.kinds[self.tp[number]]

    def move_seconds(self, source: int, target: int, tokens: int) -> float:
        """Until so many cached tokens have come from one to another."""
        return self.kind(target).move_seconds(self.kind(source), tokens)

    def add(self, number: int, tp: int, at: float) -> ReplicaUp:
        """An engine is there from now on."""
        engine = self.kinds[tp].engine(self._names)
        engine.clock = at
        self.engines[number], self.tp[number] = engine, tp
        self.wakes[number] = self.wakes.get(number, 0) + 1
        return self._up(number, at)

    def remove(self, number: int, at: float) -> tuple[list[tuple[Attempt, Request]], int | None]:
        """Remove an engine. Returns its unfinished requests with their trajectories, and its epoch if it was open."""
        lost = [r for r in self.run_to(number, at).crash(at) if r.index in self.requests]
        del self.engines[number], self.tp[number]
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
        """All that were closed."""
        self.freed_gpu_seconds += sum(self.tp[number] * (at - since) for number, since in self._closed.items())
        opened = [self._up(number, at) for number in self._closed]
        self._closed.clear()
        return opened

    def submit(self, number: int, r: Request, at: float) -> None:
        """A request for an engine."""
        self.run_to(number, at).submit(r, at)
        self.sleep(number)

    def take_off(self, number: int, r: Request, at: float) -> None:
        """Stop a request, if it has not ended by then."""
        engine = self.run_to(number, at)
        if r.status < FINISHED:
            engine.abort(r, at)
            engine.finished.remove(r)
            self.sleep(number)

    def run_to(self, number: int, now: float) -> Engine:
        """An engine, run up to a second."""
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
            return  # as was said before, and is still on the agenda
        self._bounds[number] = bound
        ticket = self.wakes[number] = self.wakes[number] + 1
        if bound < inf:
            self._clock.schedule((bound, WAKE, number, "", ticket))

    def outputs(self, number: int, r: Request) -> int:
        """Tokens that a request has been given, without stopping those it decodes together with."""
        return self.engines[number].step - r.offset + 1 - r.prompt if r.grouped else r.outputs

    def _collect(self, number: int) -> None:
        engine = self.engines[number]
        for r in engine.finished:
            attempt = self.requests.get(r.index)
            if attempt is not None and r.status in (FINISHED, ABORTED):
                self._clock.schedule((engine.end_of(r), END, number, attempt.trajectory.id, r.index))
        engine.finished.clear()

    def _up(self, number: int, at: float) -> ReplicaUp:
        limits = self.kind(number).limits
        epoch = self._epochs[number] = self._epochs.get(number, -1) + 1
        return ReplicaUp(at, number, self.tp[number], limits.max_num_seqs, limits.blocks * limits.block_size, epoch)
