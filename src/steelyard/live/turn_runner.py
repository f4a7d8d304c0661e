"""Runs turns on the engines that the core chooses: asks for the rest of a turn, reads the answer, goes on elsewhere."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from steelyard.balance.commands import Place
from steelyard.balance.events import Called, Generated, Moved, Paused, ReplicaDown
from steelyard.live.journal import StoredTurn, TurnJournal
from steelyard.live.live_trajectory import LiveTrajectory, TurnRefused
from steelyard.live.turns import TurnRequest, TurnSoFar
from steelyard.live.upstream import Upstream, UpstreamAnswer, UpstreamFailure
from steelyard.live.wire import Message

log = logging.getLogger("steelyard.gateway")

_AGAIN_SECONDS = 1.0  # until an engine that broke off is tried again; chosen
_TRIES = 3  # on an engine that answers with an error of its own, until the turn is given up
_JSON = {"content-type": "application/json"}


class EngineEntry(NamedTuple):
    """An engine: its server, how often it has come up, the version of its weights, its GPUs."""

    upstream: Upstream
    epoch: int
    version: int
    gpus: int


@dataclass(frozen=True)
class DeskSettings:
    """How turns are run."""

    by_token: bool = True  # engines stream, so that a turn goes on from its last token when its engine dies
    counts_tokens: bool = False  # whether the core wants to know the versions of tokens
    moves_caches: bool = False  # engines fetch caches from each other and from the host, as emulated ones do
    keeps_prompts: bool = False  # the journal has the tokens of prompts, too, for a trainer
    speed: float = 1.0  # seconds of the run in a second, above 1 if engines are emulated faster than real ones
    client_seconds: float = 600.0  # until a trajectory is given up whose client or tool has not come back
    engine_token: str = field(default="", repr=False)  # that engines want to see


class _Asking(NamedTuple):
    """How an engine is asked for a turn."""

    place: Place
    cap: int | None
    stream: bool
    cached_at: int | None


class TurnRunner:
    """Runs turns to their end, each on one engine or several, and reports what came of them."""

    def __init__(self, journal: TurnJournal, report: Callable[..., None], settings: DeskSettings) -> None:
        self.engines: dict[int, EngineEntry] = {}
        self.cap: int | None = None
        self._journal, self._tell, self._settings = journal, report, settings

    async def run(self, live: LiveTrajectory, request: TurnRequest) -> StoredTurn:
        """Run a turn to its end, on one engine or several."""
        try:
            errors = 0
            while True:
                place = await self._placed(live)
                errors = await self._run_at(live, request, place, errors)
                if errors < 0:
                    return self._over(live, request)
        finally:
            live.task = None
            live.chunk_came.set()

    async def _placed(self, live: LiveTrajectory) -> Place:
        while live.placed is None:
            live.place_came.clear()
            await live.place_came.wait()
        place, live.doing = live.placed, "running"
        live.place_came.clear()
        return place

    async def _run_at(self, live: LiveTrajectory, request: TurnRequest, place: Place, errors: int) -> int:
        """Run the rest of a turn where it was placed. Returns the errors so far, or -1 once it is over."""
        cap = None if self.cap is None else max(1, self.cap - live.since)
        before = live.so_far.count
        try:
            entry = self.engines.get(place.replica)
            if entry is None:
                raise UpstreamFailure(f"engine {place.replica} has no address")
            stream = request.streams or self._settings.by_token
            await self._ask(live, request, entry, _Asking(place, cap, stream, self._cached_at(live, place, entry)))
        except UpstreamFailure as failure:
            if live.placed is place:
                log.warning("engine %d: %s", place.replica, failure)
                await self._lost(live, place)
            return errors
        except _EngineError as problem:
            if live.epoch != place.epoch:
                return errors
            return await self._failed(live, problem, errors)
        finally:
            live.asked, live.stopping = None, False
            live.since += max(0, live.so_far.count - before)
        so_far = live.so_far
        capped = cap is not None and so_far.finish == "length" and so_far.count - before >= cap
        if capped and (request.most is None or so_far.count < request.most):
            live.held = True
        if so_far.finish == "abort" or (live.held and capped):
            self._stopped(live, place)
            return errors
        return -1

    def _cached_at(self, live: LiveTrajectory, place: Place, entry: EngineEntry) -> int | None:
        """Where its cache can be fetched: an engine of so many GPUs, or 0, the host's memory. None if it is there
        already, or has to be computed again."""
        source = self.engines.get(-1 if place.source is None else place.source)
        if not self._settings.moves_caches or source is None or live.cached_by != entry.version:
            return None
        if place.source == place.replica:
            return 0 if live.cache == "offload" else None
        return source.gpus if place.cache == "keep" and live.cache != "drop" else None

    async def _ask(self, live: LiveTrajectory, request: TurnRequest, entry: EngineEntry, asking: _Asking) -> None:
        """Ask an engine for the rest of a turn, and read its answer."""
        extra: dict[str, Any] = {"request_id": _identity(live)}
        if asking.cached_at is not None:
            extra["kv_transfer_params"] = {"gpus": asking.cached_at}
            if asking.cached_at:  # no engine says when its cache has come, which takes less than a step or two
                self._tell(Moved(0.0, live.name, live.epoch))
        live.cache, live.cached_by = "keep", entry.version
        asked = live.so_far.rest(request, cap=asking.cap, stream=asking.stream, extra=extra)
        if asked is None:
            live.so_far, live.chunks = TurnSoFar(), []
            asked = live.so_far.rest(request, cap=asking.cap, stream=asking.stream, extra=extra)
        assert asked is not None, "a turn can begin"
        path, body = asked
        headers = {**_JSON, "x-request-id": _identity(live)}
        answer = await entry.upstream.ask("POST", path, headers, body, lambda sent: _await(live, asking.place, sent))
        if answer.status != 200:
            raise _EngineError(answer.status, await answer.whole())
        if not asking.stream:
            live.so_far.take(orjson.loads(await answer.whole()), entry.version)
            return
        await self._read_stream(live, request, answer, entry)

    async def _read_stream(
        self, live: LiveTrajectory, request: TurnRequest, answer: UpstreamAnswer, entry: EngineEntry
    ) -> None:
        rest = b""
        number = next((each for each, known in self.engines.items() if known.upstream is entry.upstream), None)
        while (part := await answer.take()) is not None:
            *whole, rest = (rest + part).split(b"\n\n")
            for chunk in whole:
                data = chunk.removeprefix(b"data: ")
                if data == b"[DONE]" or not data:
                    continue
                current = entry if number is None else self.engines.get(number, entry)
                parsed = orjson.loads(data)
                if "error" in parsed:
                    raise UpstreamFailure(str(parsed["error"].get("message"))[:200], begun=True)
                live.so_far.take(parsed, current.version)
                if request.streams:
                    live.chunks.append(chunk + b"\n\n")
                    live.chunk_came.set()

    def _over(self, live: LiveTrajectory, request: TurnRequest) -> StoredTurn:
        """A turn is over: write it down, then report it."""
        so_far = live.so_far
        answer = so_far.answer(request)
        if self._settings.keeps_prompts and so_far.ids is not None:
            answer["choices"][0]["prompt_token_ids"] = so_far.prompt_ids or request.body.get("prompt")
        stored = StoredTurn(live.turn, answer["usage"]["prompt_tokens"], so_far.count, answer)
        self._journal.add(live.name, stored)
        self.finish(live, stored, so_far.versions)
        return stored

    def finish(self, live: LiveTrajectory, stored: StoredTurn, versions: dict[int, int]) -> None:
        """Report a turn that is over."""
        live.turn += 1
        live.generated += stored.generated
        live.last, live.context = stored.generated, stored.prompt_tokens + stored.generated
        live.doing, live.placed = "tool", None
        live.called = live.seen = time.monotonic()
        if self._settings.counts_tokens and versions:
            self._tell(*(Generated(0.0, live.name, version, tokens) for version, tokens in versions.items()))
        self._tell(Called(0.0, live.name, live.epoch, stored.generated))

    def _stopped(self, live: LiveTrajectory, place: Place) -> None:
        """A turn was stopped on its engine. It may have been placed elsewhere by now."""
        live.doing, live.so_far.finish = "waiting", None
        if live.placed is place:
            live.placed = None
        if live.held:
            self._tell(Paused(0.0, live.name, live.epoch, live.generated + live.so_far.count))

    async def _lost(self, live: LiveTrajectory, place: Place) -> None:
        """An engine broke off: the core will place its turns elsewhere. Unless it does, the engine is tried again: it
        may have come back before it was missed."""
        live.doing = "waiting"
        entry = self.engines.get(place.replica)
        if entry is not None:
            self._tell(ReplicaDown(0.0, place.replica, entry.epoch))
        live.place_came.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_AGAIN_SECONDS):
                await live.place_came.wait()

    async def _failed(self, live: LiveTrajectory, problem: _EngineError, errors: int) -> int:
        """An engine answered with an error. Its own ones are tried again, a mistake of the client is passed on."""
        if problem.status < 500 or errors + 1 >= _TRIES:
            self.finish(live, StoredTurn(live.turn, live.context, 0, {}), {})
            live.turn -= 1  # it can be asked for again
            raise TurnRefused(problem.status if problem.status < 500 else 502, problem.message)
        await asyncio.sleep(0.1 * 2**errors)
        return errors + 1

    def stop(self, live: LiveTrajectory) -> None:
        """Have a turn's engine stop, and answer with the tokens so far."""
        assert live.placed is not None
        entry = self.engines.get(live.placed.replica)
        live.stopping = True
        if entry is not None:
            body = orjson.dumps({"request_ids": _engine_names(_identity(live))})
            _look_later(asyncio.ensure_future(_post(entry.upstream, "/abort_requests", body)))

    def use(self, rows: Message) -> None:
        """Run turns on these engines from now on. Connections to those that stay are kept."""
        known = {str(entry.upstream): entry.upstream for entry in self.engines.values()}
        found = {
            int(number): (Upstream.of(row["url"], self._settings.engine_token), row) for number, row in rows.items()
        }
        self.engines = {
            number: EngineEntry(known.get(str(fresh), fresh), row["epoch"], row["version"], row["gpus"])
            for number, (fresh, row) in found.items()
        }


class _EngineError(Exception):
    """An engine's answer that is no turn."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.message = _message(body)


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return "the engine refused this request"


def _engine_names(identity: str) -> list[str]:
    """What vLLM calls a request that was sent with an id: as a completion, and as a chat."""
    return [f"cmpl-{identity}-0", f"chatcmpl-{identity}"]


def _identity(live: LiveTrajectory) -> str:
    """Of a turn's request to an engine."""
    return f"{live.name}.{live.turn}.{live.epoch}"


def _await(live: LiveTrajectory, place: Place, sent: UpstreamAnswer) -> None:
    """A turn waits for an engine's answer, unless it was placed elsewhere while the engine was being reached."""
    live.asked = sent
    if live.placed is not place:
        sent.abandon()


def _look_later(task: asyncio.Future[None]) -> None:
    task.add_done_callback(lambda done: None if done.cancelled() else (done.exception(), None)[1])


async def _post(upstream: Upstream, path: str, body: bytes) -> None:
    answer = await upstream.ask("POST", path, _JSON, body)
    await answer.whole()
