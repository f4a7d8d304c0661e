"""One engine, run up to the second that its driver's clock shows. It never looks ahead: requests may still come.

An engine in flight knows the end of a step before that second is reached, so tokens can be delivered on time. Their
times are those of a simulation of the same requests, to the bit.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, nextafter
from typing import Literal

from steelyard.cost import HostTerms
from steelyard.emulate.content import ContentNames
from steelyard.engine import ABORTED, FINISHED, REJECTED, Engine, EngineLog, Request
from steelyard.fleet.frontend import Frontend, Shown

Finish = Literal["", "length", "abort", "reject"]
"""Why a request has ended; empty while it has not."""

_MOST_STEPS = 1 << 18  # kept by an engine that comes to rest: about 25 MB
_REASONS: dict[int, Finish] = {ABORTED: "abort", REJECTED: "reject"}


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request's client has so many output tokens from this second on."""

    at: float
    request: int
    tokens: int
    finish: Finish = ""
    why: str = ""
    known: float = 0.0  # the second of its step's result, before which it cannot be sent

    def leaves(self, lead: float) -> float:
        """When to send it, if sending begins so many seconds before."""
        return max(self.known, self.at - lead)


@dataclass(slots=True)
class _Stream:
    request: Request
    each_token: bool  # deliver every token, not only the last
    told: int = 0  # tokens that steps have brought
    sent: int = 0  # those of them that were delivered


class EmulatedEngine:
    """An engine with its front end. `run` takes it to a second; `next_second` says when to run it again."""

    def __init__(self, engine: Engine, names: ContentNames, host: HostTerms, most_steps: int = _MOST_STEPS) -> None:
        self.engine = engine
        self._most_steps = most_steps
        self.names = names
        self._host = host
        self._frontend = Frontend(host)
        self._shown = Shown(host, engine.log)
        self._arriving: deque[tuple[float, Request]] = deque()  # when the engine sees each
        self._streams: dict[int, _Stream] = {}
        self._eager = 0  # streams that want each token
        self._by_step: deque[tuple[int, list[tuple[int, int, Finish]]]] = deque()  # results of steps, in order
        self._ready: deque[Delivery] = deque()
        self._held = False  # whether no step may run

    def submit(
        self,
        number: int,
        tokens: array[int],
        output: int,
        at: float,
        *,
        each_token: bool = True,
        priority: int = 0,
        given: int = -1,
    ) -> Request:
        """A client sends a request. ``tokens`` are those of its prompt and of its output. A connector has brought the
        cache of the first ``given`` of them; -1 without one."""
        prompt = len(tokens) - output
        r = Request(number, at, prompt, output, priority)
        r.given = given
        if self.engine.limits.enable_prefix_caching:
            r.chain = self.names.add(number, tokens)
            r.keys = self.names.names(r.chain, prompt)
        self._streams[number] = _Stream(r, each_token)
        self._eager += each_token
        self._arriving.append((self._frontend.take(at, prompt)[1], r))
        return r

    def abort(self, numbers: Iterable[int], at: float) -> None:
        """Stop requests. Each is delivered once more, with what was delivered or, if only its end is, generated."""
        self.run(at)
        for number in numbers:
            stream = self._streams.get(number)
            if stream is None:
                continue
            r = stream.request
            tokens = stream.sent if stream.each_token else self.generated(r, at)
            waiting = [each for each in self._arriving if each[1] is r]
            if waiting:
                self._arriving.remove(waiting[0])
                self._end(stream)
            elif r.status < FINISHED:
                self.engine.abort(r, at)
                self.engine.finished.remove(r)
                self._end(stream)
            else:
                continue  # its last token is on the way
            self._take_back(number)
            self._ready.appendleft(Delivery(at, number, tokens, "abort"))

    def hold(self, at: float) -> None:
        """Run no step from now on. Steps that were launched end."""
        self.run(at)
        self._held = True

    def release(self, at: float) -> None:
        """Go on after `hold`."""
        if self._held:
            self._held = False
            self.engine.clock = max(self.engine.clock, at)

    @property
    def unfinished(self) -> list[int]:
        """Requests whose last token has not been delivered, in order of arrival."""
        return list(self._streams)

    @property
    def running(self) -> int:
        """Requests in the engine's batch."""
        return len(self.engine.scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests that wait for a place in it."""
        return len(self.engine.scheduler.waiting) + len(self._arriving)

    @property
    def kv_use(self) -> float:
        """The share of KV blocks in use."""
        total = self.engine.limits.blocks
        return 1 - self.engine.scheduler.kv.free / total if total else 0.0

    def run(self, now: float) -> None:
        """Run all steps that are scheduled by now, with the requests that the engine has seen by then."""
        if self._held:
            return
        engine = self.engine
        while self._arriving and self._arriving[0][0] <= now:
            seen, r = self._arriving.popleft()
            self._advance(seen)
            engine.submit(r, seen)
        self._advance(nextafter(now, inf))
        if engine.step > self._most_steps and engine.idle and not self._by_step and not self._ready:
            self._forget_steps()

    def due(self, now: float, lead: float = 0.0) -> list[Delivery]:
        """Deliveries up to now, or so many seconds later if their tokens are there, in order."""
        found = []
        while self._ready and self._ready[0].leaves(lead) <= now:
            delivery = self._ready.popleft()
            found.append(delivery)
            stream = self._streams.get(delivery.request)
            if stream is not None:
                stream.sent = delivery.tokens
        return found

    def next_second(self, lead: float = 0.0) -> float:
        """When there is something to run or to deliver, if nothing is submitted before; infinite when idle."""
        found = self._ready[0].leaves(lead) if self._ready else inf
        if self._held:
            return found
        engine = self.engine
        if self._arriving:
            found = min(found, self._arriving[0][0])
        if engine.stuck:
            return min(found, engine.due)
        if not engine.idle:
            found = min(found, engine.clock if self._eager else max(engine.clock, engine.next_end_bound()))
        return found

    def generated(self, r: Request, now: float) -> int:
        """Output tokens of a request that steps have brought by now, up to which the engine has run. It may lack the
        newest one while the request is preempted."""
        log = self.engine.log
        last = log.dropped + bisect_right(log.ends, now) - 1
        if r.grouped:
            return max(0, min(r.output, last + 2 - r.offset - r.prompt))
        outputs = r.output if r.status == FINISHED else r.outputs
        return outputs if r.last <= last else outputs - 1

    def first_token(self, r: Request) -> float:
        """When the front end had the first token of a request that is being delivered."""
        return self.engine.log.end_of(r.first) + self._host.output

    def _advance(self, until: float) -> None:
        """Run up to a second, a completion at a time, so that blocks are freed and counted in order."""
        engine = self.engine
        while True:
            engine.advance(until)
            self._collect()
            if engine.clock >= until or engine.stuck or engine.idle:
                return

    def _collect(self) -> None:
        """Note what the last steps have brought, and deliver what will not change any more."""
        engine = self.engine
        results: dict[int, list[tuple[int, int, Finish]]] = {}
        ended = engine.finished
        if ended:
            for r in ended:
                stream = self._streams.get(r.index)
                if stream is None:
                    continue
                if r.status == FINISHED:
                    results.setdefault(r.last, []).append((r.index, r.output, "length"))
                else:
                    at, why = engine.log.given_up[r.index]
                    self._ready.append(Delivery(at, r.index, r.outputs, _REASONS[r.status], why))
                self._end(stream)
            engine.finished = []
        if self._eager:
            step = engine.step
            for number, stream in self._streams.items():
                if not stream.each_token:
                    continue
                r = stream.request
                last, outputs = (step - 1, step - r.offset + 1 - r.prompt) if r.grouped else (r.last, r.outputs)
                if outputs > stream.told:
                    stream.told = outputs
                    results.setdefault(last, []).append((number, outputs, ""))
        self._by_step.extend(sorted(results.items()))
        final = engine.step - (1 if engine.flight is None else 2)
        while self._by_step and self._by_step[0][0] <= final:
            step, found = self._by_step.popleft()
            at, end = self._shown.at(step), engine.log.end_of(step)
            self._ready.extend(Delivery(at, number, tokens, finish, "", end) for number, tokens, finish in found)

    def _take_back(self, number: int) -> None:
        """Tokens of steps in flight are not delivered to a request that was aborted."""
        self._ready = deque(each for each in self._ready if each.request != number)
        self._by_step = deque((step, [each for each in found if each[0] != number]) for step, found in self._by_step)

    def _forget_steps(self) -> None:
        """Begin a new log. Nothing that runs or is to be delivered refers to the old one."""
        engine = self.engine
        engine.log, engine.step = EngineLog(), 0
        self._shown = Shown(self._host, engine.log)

    def _end(self, stream: _Stream) -> None:
        number = stream.request.index
        del self._streams[number]
        self._eager -= stream.each_token
        self.names.end(number)
