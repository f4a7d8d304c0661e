"""An emulated engine in real time: what clients and operators do to it, and what comes back.

Everything runs on one event loop. A timer runs the engine when its clock says so.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from steelyard.emulate.clock import Clock
from steelyard.emulate.engine import Delivery, EmulatedEngine
from steelyard.emulate.metrics import Metrics
from steelyard.emulate.text import Output
from steelyard.engine import Request

PauseMode = Literal["abort", "wait", "keep"]

# A delivery leaves this much early, since timers fire up to a millisecond late: half of that is the mean. Chosen;
# `python -m bench.emulate` measures what is left.
_EARLY_SECONDS = 0.5e-3


class Mailbox:
    """What has been delivered to one client and was not taken yet."""

    def __init__(self) -> None:
        self._items: list[Delivery] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Delivery) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Delivery]:
        """All of them, as soon as there is one."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        items, self._items = self._items, []
        return items


@dataclass
class AnswerChoice:
    """One choice of a client's request."""

    number: int
    prompt: array[int]
    output: Output
    stops: bool  # it ends by itself, not at the client's limit
    at: float  # second of arrival
    mailbox: Mailbox
    each_token: bool
    priority: int = 0
    delivered: int = 0
    last: float = 0.0  # second of its newest token
    request: Request | None = None


@dataclass
class ServedWeights:
    """Which weights an engine says it has, and which ones it answers with."""

    version: str = "0"
    answers: str = "0"
    stale: bool = False  # updates are acknowledged and have no effect

    def update(self, version: str) -> None:
        self.version = version
        if not self.stale:
            self.answers = version


@dataclass
class Loading:
    """Engine seconds of moving weights."""

    update: float  # from a trainer
    host: float  # to or from the host's memory
    disk: float  # from disk


@dataclass
class EmulatedReplica:
    """One engine, its clock and its clients."""

    name: str  # of the model
    engine: EmulatedEngine
    clock: Clock
    lengths: Callable[[int], int]  # output tokens of a request that sets no length
    metrics: Metrics
    loading: Loading
    gpus: int = 1
    weights: ServedWeights = field(default_factory=ServedWeights)
    paused: bool = False
    asleep: bool = False
    hung: bool = False
    crashed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._numbers: Iterator[int] = count()
        self._choices: dict[int, AnswerChoice] = {}
        self._held: list[AnswerChoice] = []  # arrived while paused
        self._timer: asyncio.TimerHandle | None = None

    # -- clients ------------------------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        """Most tokens of prompt and output."""
        return self.engine.engine.limits.max_model_len

    def submit(
        self,
        prompt: array[int],
        most: int | None,
        mailbox: Mailbox,
        at: float,
        *,
        exact: bool = False,
        each_token: bool = True,
        priority: int = 0,
    ) -> AnswerChoice:
        """Take a request: at most ``most`` tokens of output, or exactly so many."""
        number = next(self._numbers)
        room = self.longest - len(prompt)
        most = room if most is None else min(most, room)
        tokens = most if exact else min(most, max(1, self.lengths(number)))
        choice = AnswerChoice(number, prompt, Output(number, tokens), tokens < most, at, mailbox, each_token, priority)
        self._choices[number] = choice
        if self.paused or self.asleep:
            self._held.append(choice)
        else:
            self._start(choice, at)
        return choice

    def abort(self, choices: list[AnswerChoice]) -> None:
        """Stop requests; each client is told what it has got."""
        self._held = [each for each in self._held if each not in choices]
        now = self.clock.now()
        self.engine.abort([choice.number for choice in choices], now)
        self.poke()
        for choice in choices:
            if self._choices.get(choice.number) is choice:
                self._deliver(Delivery(now, choice.number, choice.delivered, "abort"))

    @property
    def choices(self) -> list[AnswerChoice]:
        """Requests that have not ended."""
        return list(self._choices.values())

    # -- operators ----------------------------------------------------------------------------------------------

    async def pause(self, mode: PauseMode, clear: bool) -> None:
        """Stop generating: requests in flight are aborted, finish first, or keep their place until `resume`."""
        self.paused = True
        if mode == "abort":
            self.abort(self.choices)
        elif mode == "wait":
            await self._drain()
        else:
            self.engine.hold(self.clock.now())
            self.poke()
            return
        if clear:
            self.engine.names.forget()

    def resume(self) -> None:
        """Go on after a pause or a sleep."""
        self.paused = False
        now = self.clock.now()
        self.engine.release(now)
        held, self._held = self._held, []
        for choice in held:
            self._start(choice, now)
        self.poke()

    async def sleep(self, level: int) -> None:
        """Free the GPU. What is in flight is aborted, and what is cached is lost."""
        self.abort(self.choices)
        self.asleep = True
        self.engine.names.forget()
        if level == 1:
            await self.spend(self.loading.host)

    async def wake(self, level: int) -> None:
        await self.spend(self.loading.host if level == 1 else self.loading.disk)
        self.asleep = False
        if not self.paused:
            self.resume()

    async def spend(self, seconds: float) -> None:
        """Let engine seconds pass."""
        await asyncio.sleep(self.clock.wait(self.clock.now() + seconds))

    def hang(self) -> None:
        """Make no progress from now on. Connections stay open."""
        self.hung = True
        self._cancel()

    def recover(self) -> None:
        """Undo `hang`. The engine goes on where it was."""
        if self.hung:
            self.hung = False
            self.engine.engine.clock = max(self.engine.engine.clock, self.clock.now())
            self.poke()

    def crash(self) -> None:
        """End for good."""
        self._cancel()
        self.hung = True
        self.crashed.set()

    def poke(self) -> None:
        """Run the engine up to now, deliver what is due, and set the timer."""
        self._cancel()
        if self.hung:
            return
        now = self.clock.now()
        self.engine.run(now)
        for delivery in self.engine.due(now + _EARLY_SECONDS * self.clock.speed):
            self._deliver(delivery)
        due = self.engine.next_second()
        if due < float("inf"):
            early = self.clock.wait(due) - _EARLY_SECONDS
            self._timer = asyncio.get_running_loop().call_later(max(0.0, early), self.poke)

    def observe(self) -> Metrics:
        """Metrics as of now."""
        self.poke()
        metrics = self.metrics
        metrics.running.set(self.engine.running)
        metrics.waiting.set(self.engine.waiting + len(self._held))
        metrics.kv_use.set(self.engine.kv_use)
        return metrics

    # ------------------------------------------------------------------------------------------------------------

    def _start(self, choice: AnswerChoice, at: float) -> None:
        if choice.output.tokens <= 0:
            self._deliver(Delivery(at, choice.number, 0, "length"))
            return
        self.engine.run(at)
        tokens = choice.prompt + array("I", choice.output.ids())
        choice.request = self.engine.submit(
            choice.number, tokens, choice.output.tokens, at, each_token=choice.each_token, priority=choice.priority
        )
        self.metrics.prompt_tokens.inc(len(choice.prompt))
        self.metrics.cache_queries.inc(len(choice.prompt))
        self.metrics.prompts.observe(len(choice.prompt))
        self.poke()

    def _deliver(self, delivery: Delivery) -> None:
        choice = self._choices.get(delivery.request)
        if choice is None:
            return
        new, metrics = delivery.tokens - choice.delivered, self.metrics
        if new > 0:
            metrics.generated_tokens.inc(new)
            if choice.delivered:
                metrics.token.observe((delivery.at - choice.last) / new)
            else:
                metrics.first_token.observe(delivery.at - choice.at)
            choice.delivered, choice.last = delivery.tokens, delivery.at
        if delivery.finish:
            self._end(choice, delivery)
        if choice.each_token or delivery.finish:
            choice.mailbox.put(delivery)

    def _end(self, choice: AnswerChoice, delivery: Delivery) -> None:
        del self._choices[choice.number]
        metrics, r = self.metrics, choice.request
        metrics.ended("stop" if delivery.finish == "length" and choice.stops else delivery.finish)
        metrics.whole.observe(max(0.0, delivery.at - choice.at))
        metrics.outputs.observe(choice.delivered)
        if r is not None and r.scheduled >= 0:
            metrics.queue.observe(r.scheduled - choice.at)
            metrics.cache_hits.inc(r.hit)
            metrics.preemptions.inc(r.preemptions)

    async def _drain(self) -> None:
        in_flight = [choice for choice in self._choices.values() if choice not in self._held]
        while any(self._choices.get(choice.number) is choice for choice in in_flight):
            await self.spend(0.01)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
