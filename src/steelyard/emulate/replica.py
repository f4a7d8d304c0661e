"""An emulated engine in real time: what clients and operators do to it, and what comes back.

Everything runs on one event loop. A timer runs the engine when its clock says so.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, NamedTuple

from steelyard.emulate.clock import Clock
from steelyard.emulate.engine import Delivery, EmulatedEngine
from steelyard.emulate.lead import Lead
from steelyard.emulate.metrics import Metrics
from steelyard.emulate.text import Output
from steelyard.engine import Request

PauseMode = Literal["abort", "wait", "keep"]


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


class CacheSource(NamedTuple):
    """Where the KV cache of a prompt lies: in the host's memory (0), or on an engine with so many GPUs."""

    gpus: int


FetchSeconds = Callable[[CacheSource, int], float]
"""Engine seconds to fetch the KV cache of so many tokens from somewhere else."""


@dataclass(eq=False)
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
    scored: bool = False  # log-probs of its prompt are wanted
    delivered: int = 0
    counted: int = 0  # tokens that are in the metrics
    last: float = 0.0  # second of its newest token
    request: Request | None = None
    fetched: bool = False  # the cache of its prompt came from elsewhere
    ids: tuple[str, ...] = ()  # names by which operators can abort it
    weights: list[tuple[int, str]] = field(default_factory=list)  # versions, each from one of its tokens on

    def version_of(self, token: int) -> str:
        """The weights that an output token was sampled with. The prompt has those of the first one."""
        return next(version for first, version in reversed(self.weights) if first <= token)


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
    fetch_seconds: FetchSeconds | None = None  # None: it has no connector, and computes all prompts itself
    weights: ServedWeights = field(default_factory=ServedWeights)
    paused: bool = False
    asleep: bool = False
    hung: bool = False
    crashed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._numbers: Iterator[int] = count()
        self._choices: dict[int, AnswerChoice] = {}
        self._held: list[AnswerChoice] = []  # arrived while paused
        self._timer: asyncio.Handle | None = None
        self._soon: asyncio.Handle | None = None
        self._lead = Lead()
        limits = self.engine.engine.limits
        self.metrics.cache_config(limits.block_size, limits.blocks, limits.enable_prefix_caching)

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
        cached: CacheSource | None = None,
        scored: bool = False,
    ) -> AnswerChoice:
        """Take a request: at most ``most`` tokens of output, or exactly so many. It starts once its cache is there."""
        number = next(self._numbers)
        room = self.longest - len(prompt)
        most = room if most is None else min(most, room)
        tokens = most if exact else min(most, max(1, self.lengths(number)))
        output = Output(number, tokens)
        choice = AnswerChoice(number, prompt, output, tokens < most, at, mailbox, each_token, priority, scored)
        choice.weights = [(0, self.weights.answers)]
        self._choices[number] = choice
        if cached is not None and self.fetch_seconds is not None:
            choice.fetched = True
            seconds = self.clock.wait(at + self.fetch_seconds(cached, len(prompt)))
            asyncio.get_running_loop().call_later(seconds, self._start_or_hold, choice)
        else:
            self._start_or_hold(choice, at)
        return choice

    def abort(self, choices: list[AnswerChoice]) -> None:
        """Stop requests that have not ended; each client is told what it has got."""
        choices = [each for each in choices if self._choices.get(each.number) is each]
        if not choices:
            return
        self._held = [each for each in self._held if each not in choices]
        now = self.clock.now()
        self.engine.abort([choice.number for choice in choices], now)
        self.poke()
        for choice in choices:
            if self._choices.get(choice.number) is choice:
                tokens = choice.delivered if choice.each_token else self._tokens(choice, now)
                self._deliver(Delivery(now, choice.number, tokens, "abort"))

    @property
    def choices(self) -> list[AnswerChoice]:
        """Requests that have not ended."""
        return list(self._choices.values())

    def named(self, ids: Collection[str]) -> list[AnswerChoice]:
        """Those of them that have one of these names."""
        wanted = set(ids)
        return [choice for choice in self._choices.values() if not wanted.isdisjoint(choice.ids)]

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

    def update_weights(self, version: str) -> None:
        """Answer with other weights from now on, also requests in flight."""
        self.poke()
        self.weights.update(version)
        answers, now = self.weights.answers, self.clock.now()
        for choice in self._choices.values():
            if choice.weights[-1][1] != answers:
                tokens = self._tokens(choice, now)
                choice.weights = [*choice.weights, (tokens, answers)] if tokens else [(0, answers)]

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
        lead = self._lead.seconds * self.clock.speed
        due = self.engine.due(now, lead)
        for delivery in due:
            self._deliver(delivery)
        loop = asyncio.get_running_loop()
        if due:
            loop.call_soon(self._sent, now, due[-1], due[-1].at - due[-1].leaves(lead))
        following = self.engine.next_second(lead)
        if following < float("inf"):
            self._timer = loop.call_later(self.clock.wait(following), self.poke)

    def observe(self) -> Metrics:
        """Metrics as of now."""
        self.poke()
        metrics, now = self.metrics, self.clock.now()
        metrics.running.set(self.engine.running)
        metrics.waiting.set(self.engine.waiting + len(self._held))
        metrics.kv_use.set(self.engine.kv_use)
        for choice in self._choices.values():
            if not choice.each_token:  # others are counted when their tokens are delivered
                self._count(choice, self._tokens(choice, now))
        return metrics

    # ------------------------------------------------------------------------------------------------------------

    def _start_or_hold(self, choice: AnswerChoice, at: float | None = None) -> None:
        if choice.number not in self._choices:
            return  # aborted while its cache was on the way
        if self.paused or self.asleep:
            self._held.append(choice)
        else:
            self._start(choice, self.clock.now() if at is None else at)

    def _start(self, choice: AnswerChoice, at: float) -> None:
        if choice.output.tokens <= 0:
            self._deliver(Delivery(at, choice.number, 0, "length"))
            return
        self.engine.run(at)
        tokens = choice.prompt + array("I", choice.output.ids())
        choice.request = self.engine.submit(
            choice.number,
            tokens,
            choice.output.tokens,
            at,
            each_token=choice.each_token,
            priority=choice.priority,
            given=len(choice.prompt) if choice.fetched else 0 if choice.scored else -1,
        )
        self.metrics.prompt_tokens.inc(len(choice.prompt))
        if not choice.scored:  # its prompt is computed as a whole, as in vLLM: what is cached has no log-probs
            self.metrics.cache_queries.inc(len(choice.prompt))
        self.metrics.prompts.observe(len(choice.prompt))
        self._poke_soon()

    def _deliver(self, delivery: Delivery) -> None:
        choice = self._choices.get(delivery.request)
        if choice is None:
            return
        new, metrics = delivery.tokens - choice.delivered, self.metrics
        if new > 0:
            self._count(choice, delivery.tokens)
            if choice.delivered:
                metrics.token.observe((delivery.at - choice.last) / new)
            else:
                metrics.first_token.observe(self._first(choice, delivery) - choice.at)
            choice.delivered, choice.last = delivery.tokens, delivery.at
        if delivery.finish:
            self._end(choice, delivery)
        if choice.each_token or delivery.finish:
            choice.mailbox.put(delivery)

    def _count(self, choice: AnswerChoice, tokens: int) -> None:
        if tokens > choice.counted:
            self.metrics.generated_tokens.inc(tokens - choice.counted)
            choice.counted = tokens

    def _tokens(self, choice: AnswerChoice, now: float) -> int:
        """Output tokens so far, of which a client that does not stream has none yet."""
        return 0 if choice.request is None else self.engine.generated(choice.request, now)

    def _first(self, choice: AnswerChoice, delivery: Delivery) -> float:
        """The second of a request's first token, which is its first delivery unless only its last one is delivered."""
        if choice.each_token or choice.request is None:
            return delivery.at
        return self.engine.first_token(choice.request)

    def _sent(self, begun: float, last: Delivery, lead: float) -> None:
        """All tokens that were due at a second have been written, since sending them began."""
        middle = (begun + self.clock.now()) / 2
        self._lead.observe((lead + middle - last.at) / self.clock.speed)

    def _poke_soon(self) -> None:
        """Poke when all requests that have been read by now are submitted, so that a burst is seen as one."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self.poke)

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
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        self._timer = self._soon = None
