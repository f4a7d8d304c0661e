"""The rollout stage in virtual time: simulated engines, tools between turns, and the core that places each turn.

Each turn of a trajectory is a request whose prompt is the whole context so far. Between turns, the context stays in the
engine's prefix cache, unless the core has it moved, offloaded to host memory or dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from math import inf

from steelyard.balance.commands import Abort, Cap, Park, Pause, Place, Reopen, Repack, Resume
from steelyard.balance.events import (
    Aborted,
    Begun,
    Called,
    Ended,
    Generated,
    Moved,
    Paused,
    ReplicaDown,
    Resumed,
    Returned,
    Sent,
)
from steelyard.engine import Request
from steelyard.fleet.environment import Environment
from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.driver import Driver
from steelyard.posttrain.engines import EngineKind
from steelyard.posttrain.moves import Moves
from steelyard.posttrain.record import LoopRecord
from steelyard.posttrain.replicas import DUE, LAST, RETURN, Happening, Replicas
from steelyard.posttrain.turns import Turns
from steelyard.records import Trajectory

_EVENTS_AT_ONCE = 64  # of a trajectory; chosen, far more than any has


class RolloutStage:
    """Engines, the trajectories on them, and their clock.

    Events are reported to the driver's core, and its commands are carried out here. `add`, `remove` and `begin` must be
    called at the second up to which the stage has been run.
    """

    def __init__(
        self,
        driver: Driver,
        kinds: Mapping[int, EngineKind],
        block_size: int = 16,
        record: LoopRecord | None = None,
        *,
        tells_truth: bool = False,
    ) -> None:
        self.driver = driver
        self._tell = driver.tell
        self.kinds = kinds
        self.running: dict[str, Attempt] = {}
        self.ended: dict[str, Attempt] = {}  # not yet trained on or dropped
        self.record = LoopRecord() if record is None else record
        self.version = 0  # of the engines' weights; caches of other versions are invalid
        self.ready = 0.0  # when engines have, or had, the weights of this version
        self.cap: int | None = None  # tokens after which a trajectory pauses
        self._turns = Turns(block_size, {tp: kind.limits for tp, kind in kinds.items()})
        self._clock: Environment[Happening] = Environment(
            (self._on_due, self._on_end, self._on_return, self._on_moved, self._on_submit, self._on_wake, self._on_due)
        )
        self.replicas = Replicas(kinds, self._turns.names, self._clock)
        self.engines, self.tp = self.replicas.engines, self.replicas.tp
        self.moves = Moves(self.replicas)
        self._indices = count()
        self._due: dict[int, Callable[[float], object]] = {}
        self._counts_tokens = driver.core.rounds.counts_tokens
        self._tells_truth = tells_truth
        driver.on(Place, self._place)
        driver.on(Park, self._park)
        driver.on(Cap, self._cap)
        driver.on(Pause, lambda command, at: self.pause(command.trajectories, at))
        driver.on(Resume, self._resume)
        driver.on(Abort, lambda command, at: self.abort(command.trajectories, at))
        driver.on(Repack, self._repack)
        driver.on(Reopen, lambda command, at: self.reopen(at))

    # -- what the loop calls ------------------------------------------------------------------------------------

    def add(self, number: int, tp: int, at: float) -> None:
        """Start an engine of a kind."""
        self._tell(self.replicas.add(number, tp, at))

    def remove(self, number: int, at: float) -> None:
        """Remove an engine. Its trajectories continue elsewhere, without their caches."""
        lost, known = self.replicas.remove(number, at)
        for attempt, r in lost:
            self._keep_part(attempt, r, at)
        for attempt in self.running.values():
            placed = attempt.request
            if attempt.replica != number or placed is None:
                continue
            if attempt.submitted:  # its last step has not ended
                del self.replicas.requests[placed.index]
                self._keep_part(attempt, placed, at)
            attempt.ticket = -1  # its transfer to this engine is cancelled
        if known is not None:
            self._tell(ReplicaDown(at, number, known))

    def begin(
        self,
        trajectories: Iterable[tuple[Trajectory | Attempt, str]],
        at: float,
        version: int,
        batch_began: float | None = None,
    ) -> None:
        """Start trajectories, or continue paused ones; each with the name of its group. Their batch begins now, if it
        did not before."""
        first = at if batch_began is None else batch_began
        for each, group in trajectories:
            attempt = each if isinstance(each, Attempt) else Attempt(each, version, at, round=first)
            self._turns.check(attempt.trajectory)
            if attempt.context == 0:
                attempt.context = attempt.trajectory.prompt_tokens
            elif attempt.in_tool:  # which has returned by now
                attempt.next_turn()
            self._turns.forget(attempt)
            attempt.cache, attempt.since = "keep", 0
            trajectory, turns = attempt.trajectory, attempt.trajectory.turns[: attempt.turns]
            self.running[trajectory.id] = attempt
            self._clock.most_at_once += _EVENTS_AT_ONCE
            attempt.epoch += 1
            truth = trajectory if self._tells_truth else None
            begun = Begun(
                at, trajectory.id, trajectory.prompt, trajectory.prompt_tokens, version, turns, attempt.tokens
            )
            begun.epoch, begun.group, begun.truth = attempt.epoch, group, truth
            self._tell(begun)

    def abort(self, names: Iterable[str], at: float) -> None:
        """Abort trajectories. Those that have ended are dropped."""
        for name in list(names):
            ended = self.ended.pop(name, None)
            if ended is not None:
                self.record.drop(ended)
            if name not in self.running:
                continue
            attempt = self.running.pop(name)
            self._stop(attempt, at)
            attempt.ticket = -1  # its tool is ignored
            self.record.drop(attempt)
            self._tell(Aborted(at, name, attempt.epoch))

    def pause(self, names: Iterable[str], at: float) -> None:
        """Pause trajectories. They keep their tokens and caches. Running tools continue."""
        for name in names:
            attempt = self.running[name]
            if attempt.held:
                continue
            attempt.held = True
            if not attempt.in_tool:
                self._stop(attempt, at)
                self._tell(Paused(at, name, attempt.epoch, attempt.generated))

    def resume(self, name: str, at: float, priority: int | None = None, left: int | None = None) -> None:
        """Continue a paused trajectory. ``left`` is its number of remaining tokens, if known."""
        attempt = self.running[name]
        if not attempt.held:
            return
        attempt.held, attempt.since, attempt.priority = False, 0, priority
        if attempt.returned:
            attempt.returned = False
            self._returned(attempt, at)
        elif not attempt.in_tool:
            attempt.epoch += 1
            self._tell(Resumed(at, name, attempt.epoch, left))

    def send(self, name: str, target: int, at: float) -> None:
        """Move a trajectory and its cache to another replica; only the cache if it is not generating."""
        attempt = self.running[name]
        source = self.driver.core.placement.rollouts.running[name].replica
        if attempt.request is None and source is not None:
            self.moves.send(attempt, source, target, at)
        self._stop(attempt, at)
        attempt.epoch += 1
        self._tell(Sent(at, name, attempt.epoch, target))

    def close(self, numbers: Iterable[int], at: float) -> None:
        """Place no trajectory on these replicas until they are opened again."""
        for number in numbers:
            epoch = self.replicas.close(number, at)
            if epoch is not None:
                self._tell(ReplicaDown(at, number, epoch))

    def reopen(self, at: float) -> None:
        """Open all closed replicas."""
        for event in self.replicas.reopen(at):
            self._tell(event)

    def new_weights(self, at: float, ready: float) -> None:
        """Change weights from ``at`` to ``ready``, while no engine runs. Caches of the old weights become invalid."""
        self.ready = ready
        for number in self.engines:
            engine = self.replicas.run_to(number, at)
            engine.clock = max(engine.clock, ready)
            self.replicas.sleep(number)
        for attempt in self.running.values():
            r = attempt.request
            if r is not None and attempt.submitted:
                self._count(attempt, min(self.replicas.outputs(attempt.replica, r), r.output - 1), at)
            self._turns.forget(attempt)
            attempt.cache, attempt.sent, attempt.kept = "drop", 0, 0
        self._turns.new_weights(self.running.values())
        self.version += 1

    def later(self, at: float, action: Callable[[float], object], last: bool = False) -> None:
        """Schedule an action, before all other events of that second, or after them with ``last``."""
        ticket = next(self._indices)
        self._due[ticket] = action
        self._clock.schedule((at, LAST if last else DUE, -1, "", ticket))

    def run(self, until: float = inf) -> float:
        """Run until a second, until `stop`, or until no event is left. Returns the second reached."""
        self._clock.run(until)
        return self._clock.now if until == inf else until

    def stop(self) -> None:
        """End the run after the current event."""
        self._clock.stop()

    # -- what happens, in the order of its priority -------------------------------------------------------------

    def _on_due(self, event: Happening) -> None:
        self._due.pop(event[4])(event[0])

    def _on_return(self, event: Happening) -> None:
        attempt = self._awaited(event)
        if attempt is not None:
            self._returned(attempt, event[0])

    def _on_moved(self, event: Happening) -> None:
        awaited = self._awaited(event)
        if awaited is not None:
            self._tell(Moved(event[0], event[3], awaited.epoch))
            self._on_submit(event)  # unless it was aborted or sent elsewhere

    def _on_submit(self, event: Happening) -> None:
        attempt = self._awaited(event)
        if attempt is not None:
            r = attempt.request
            assert r is not None
            attempt.submitted = True
            self.replicas.submit(event[2], r, event[0])

    def _on_wake(self, event: Happening) -> None:
        now, _, number, _, ticket = event
        if ticket == self.replicas.wakes[number]:
            self.replicas.wake(number, now)

    def _awaited(self, event: Happening) -> Attempt | None:
        """The trajectory of an event; None if it was aborted or sent elsewhere since."""
        _, _, _, name, ticket = event
        attempt = self.running.get(name)
        return attempt if attempt is not None and attempt.ticket == ticket else None

    # -- carrying out commands ----------------------------------------------------------------------------------

    def _park(self, command: Park, at: float) -> None:
        attempt = self.running.get(command.trajectory)
        if attempt is not None:
            attempt.cache = command.cache

    def _cap(self, command: Cap, at: float) -> None:
        self.cap = command.tokens

    def _resume(self, command: Resume, at: float) -> None:
        if command.trajectory in self.running:
            self.resume(command.trajectory, at, command.priority or None, command.left)

    def _repack(self, command: Repack, at: float) -> None:
        for move in command.moves:
            self.send(move.trajectory, move.target, at)
        self.close(command.freed, at)

    def _place(self, command: Place, at: float) -> None:
        attempt = self.running.get(command.trajectory)
        if attempt is None:  # aborted meanwhile; the core has not got the report yet
            return
        before, attempt.epoch = attempt.epoch, command.epoch
        if attempt.held:  # paused meanwhile: the core ignores reports of earlier placements
            if before != command.epoch:
                self._tell(Paused(at, command.trajectory, command.epoch, attempt.generated))
            return
        if attempt.request is not None:  # the replica of its last placement was removed
            self.replicas.requests.pop(attempt.request.index, None)
        elsewhere = command.source is not None and command.source != command.replica
        attempt.rerouted += attempt.replica not in (-1, command.replica)
        if attempt.cache == "drop" or (elsewhere and command.cache == "drop"):
            self._turns.forget(attempt)
        r = self._turns.request(attempt, next(self._indices), at, command.priority, self.cap)
        attempt.request, attempt.replica, attempt.submitted, attempt.counted = r, command.replica, False, 0
        self.replicas.requests[r.index] = attempt
        ready, event = self.moves.bring(attempt, command, at)
        attempt.ticket = next(self._indices)
        self._clock.schedule((ready, event, command.replica, command.trajectory, attempt.ticket))

    # -- what engines and tools report --------------------------------------------------------------------------

    def _on_end(self, event: Happening) -> None:
        now, _, number, name, index = event
        attempt = self.replicas.requests.pop(index, None)
        if attempt is None:
            return
        turns, r = attempt.trajectory.turns, attempt.request
        assert r is not None
        turn = turns[attempt.turns]
        self._count(attempt, r.output, now)
        if self.running.get(name) is not attempt:  # aborted at its last tokens
            return
        attempt.keep(r.output)
        if attempt.chain is r.chain:  # else weights have changed since
            attempt.names = r.keys
        if attempt.tokens < turn.generated:
            attempt.held = True
            self._tell(Paused(now, name, attempt.epoch, attempt.generated))
            return
        if attempt.turns + 1 == len(turns):
            attempt.turns += 1
            attempt.tokens = 0
            attempt.ended = now
            self._turns.forget(attempt)
            del self.running[name]
            self.ended[name] = attempt
            self.record.end(attempt)
            self._tell(Ended(now, name, attempt.epoch, turn))
            return
        attempt.ticket = next(self._indices)
        self._clock.schedule((now + (turn.latency or 0.0), RETURN, number, name, attempt.ticket))
        self._tell(Called(now, name, attempt.epoch, turn.generated))

    def _returned(self, attempt: Attempt, now: float) -> None:
        if attempt.held:
            attempt.returned = True
            return
        self._tell(Returned(now, attempt.trajectory.id, attempt.epoch, attempt.next_turn()))

    def _stop(self, attempt: Attempt, at: float) -> None:
        """Take a turn off its engine, and keep what it has generated."""
        r = attempt.request
        if r is None:
            return
        if attempt.submitted:
            self.replicas.take_off(attempt.replica, r, at)
        self.replicas.requests.pop(r.index, None)
        self._keep_part(attempt, r, at)

    def _keep_part(self, attempt: Attempt, r: Request, at: float) -> None:
        """Keep the tokens of a turn that continues elsewhere or later."""
        part = max(attempt.counted, min(r.outputs, r.output - 1))
        self._count(attempt, part, at)
        attempt.keep(part)
        attempt.ticket = -1

    def _count(self, attempt: Attempt, tokens: int, at: float) -> None:
        """Count the tokens of a request under the version that generated them."""
        new = attempt.count(tokens, self.version)
        if self._counts_tokens and new > 0:
            self._tell(Generated(at, attempt.trajectory.id, self.version, attempt.versions[self.version]))
