"""Trajectories at the gateway. Each turn waits until the core places it, runs there, and is reported.

A turn is known by its trajectory and number. Asked for again while it runs, it is not started twice. Asked for again
when it is over, it is answered from the journal. It goes on although its client has left, who will ask again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from steelyard.balance.commands import Abort, Cache, Cap, Park, Pause, Place, Repack, Resume
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
from steelyard.balance.kinds import Command, Event
from steelyard.live.journal import StoredTrajectory, StoredTurn, TurnJournal
from steelyard.live.turns import TurnRequest, TurnSoFar
from steelyard.live.upstream import Upstream, UpstreamAnswer, UpstreamFailure
from steelyard.live.wire import Message
from steelyard.records import Outcome, Turn

log = logging.getLogger("steelyard.gateway")

_SWEEP_SECONDS = 1.0  # between two looks for trajectories whose client has left
_AGAIN_SECONDS = 1.0  # until an engine that broke off is tried again; chosen
_TRIES = 3  # on an engine that answers with an error of its own, until the turn is given up
_JSON = {"content-type": "application/json"}


class TurnRefused(Exception):
    """A turn that cannot be had, with the status of HTTP that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineEntry(NamedTuple):
    """An engine: its server, how often it has come up, the version of its weights, its GPUs."""

    upstream: Upstream
    epoch: int
    version: int
    gpus: int


class ToolReturn(NamedTuple):
    """What a client has told about a tool's return."""

    tool: str
    outcome: Outcome
    tokens: int | None


@dataclass(frozen=True)
class DeskSettings:
    """How turns are run."""

    by_token: bool = True  # engines stream, so that a turn goes on from its last token when its engine dies
    counts_tokens: bool = False  # whether the core wants to know the versions of tokens
    moves_caches: bool = False  # engines fetch caches from each other and from the host, as emulated ones do
    keeps_prompts: bool = False  # the journal has the tokens of prompts, too, for a trainer
    speed: float = 1.0  # seconds of the run in a second, above 1 if engines are emulated faster than real ones
    client_seconds: float = 600.0  # until a trajectory is given up whose client or tool has not come back


@dataclass(eq=False)
class LiveTrajectory:
    """A trajectory under way. ``turn`` is the number of its current turn, or of the next while its tool runs."""

    name: str
    group: str
    version: int
    context: int  # tokens after its last whole turn
    epoch: int = 0
    turn: int = 0
    generated: int = 0  # tokens of whole turns
    last: int = 0  # tokens of the last whole turn
    doing: Literal["waiting", "running", "tool"] = "waiting"
    cache: Cache = "keep"  # where its cache was put while its tool ran
    cached_by: int = -1  # version of the weights that made its cache
    held: bool = False
    wanted: Turn | None = None  # the turn that is over, if its tool returned while it was held
    since: int = 0  # tokens since it began or was resumed
    placed: Place | None = None
    place_came: asyncio.Event = field(default_factory=asyncio.Event)
    so_far: TurnSoFar = field(default_factory=TurnSoFar)
    task: asyncio.Task[StoredTurn] | None = None
    asked: UpstreamAnswer | None = None  # the engine's answer that is being read
    stopping: bool = False  # the engine was asked to stop this turn
    seen: float = field(default_factory=time.monotonic)  # when its client was last heard of
    called: float = field(default_factory=time.monotonic)
    tool: ToolReturn | None = None
    chunks: list[bytes] = field(default_factory=list)  # of a turn that is streamed to its client
    chunk_came: asyncio.Event = field(default_factory=asyncio.Event)


class _Asking(NamedTuple):
    """How an engine is asked for a turn."""

    cap: int | None
    stream: bool
    cached_at: int | None


class TurnDesk:
    """All trajectories of a gateway, and its duties as a member of the run."""

    def __init__(self, journal: TurnJournal, report: Callable[..., None], settings: DeskSettings) -> None:
        self.journal = journal
        self.engines: dict[int, EngineEntry] = {}
        self.running: dict[str, LiveTrajectory] = {}
        self.cap: int | None = None
        self._report, self._settings = report, settings
        self._early: dict[str, Place] = {}  # placements of trajectories whose client has not come back yet

    # -- clients ------------------------------------------------------------------------------------------------

    async def turn(self, request: TurnRequest) -> StoredTurn:
        """A turn's answer, once it is there."""
        found = self.begin(request)
        if isinstance(found, StoredTurn):
            return found
        return await self.over(found)

    async def over(self, live: LiveTrajectory) -> StoredTurn:
        """The answer of the turn that runs, once it is there."""
        task = live.task
        assert task is not None
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise TurnRefused(410, "this trajectory was given up") from None
            raise  # its client has left
        finally:
            live.seen = time.monotonic()

    def begin(self, request: TurnRequest) -> LiveTrajectory | StoredTurn:
        """Start a turn, or find it again. Returns its answer if it is over already."""
        live = self.running.get(request.trajectory)
        if live is None:
            stored = self.journal.trajectory(request.trajectory)
            if stored is not None and (stored.fate or (request.turn is not None and request.turn < len(stored.turns))):
                return _answered(stored, request.turn)
            live = self._start(request)
        wanted = live.turn if request.turn is None else request.turn
        live.seen = time.monotonic()
        if wanted < live.turn:
            stored = self.journal.trajectory(request.trajectory)
            assert stored is not None
            return _answered(stored, wanted)
        if wanted > live.turn:
            raise TurnRefused(409, f"turn {wanted} was asked for, and turn {live.turn} is the next")
        if live.task is None:
            self._want(live, request)
            live.chunks, live.so_far = [], TurnSoFar()
            live.task = asyncio.ensure_future(self._run(live, request))
            live.task.add_done_callback(_look)  # its client may have left, so nobody else may look at its error
        return live

    def tool_returned(self, name: str, returned: ToolReturn) -> None:
        """A client tells what came of a tool."""
        self._known(name).tool = returned

    def end(self, name: str, reward: float | None) -> None:
        """A client says that a trajectory is over."""
        live = self.running.get(name)
        if live is None:
            stored = self.journal.trajectory(name)
            if stored is None:
                raise TurnRefused(404, "no such trajectory")
            if stored.fate != "ended":
                raise TurnRefused(410, "this trajectory was given up")
            return
        if live.doing != "tool":
            raise TurnRefused(409, "a turn is under way")
        self.journal.end(name, "ended", reward)
        del self.running[name]
        self._tell(Ended(0.0, name, live.epoch, Turn(live.last)))

    def abort(self, names: Iterable[str]) -> None:
        """Give trajectories up."""
        for name in names:
            live = self.running.pop(name, None)
            if live is None:
                if self.journal.trajectory(name) is not None:
                    self.journal.end(name, "aborted")
                continue
            self.journal.end(name, "aborted")
            if live.asked is not None:
                live.asked.abandon()
            if live.task is not None:
                live.task.cancel()
            self._tell(Aborted(0.0, name, live.epoch))

    async def close(self) -> None:
        """Stop everything, and report nothing."""
        tasks = [live.task for live in self.running.values() if live.task is not None]
        for live in self.running.values():
            if live.asked is not None:
                live.asked.abandon()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in self.engines.values():
            entry.upstream.close()
        self.journal.close()

    async def watch(self) -> None:
        """Give up trajectories whose client or tool does not come back."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            oldest = time.monotonic() - self._settings.client_seconds
            late = [each.name for each in self.running.values() if each.task is None and each.seen < oldest]
            if late:
                log.warning("%d trajectories are given up: nothing was heard of them", len(late))
                self.abort(late)

    # -- duties -------------------------------------------------------------------------------------------------

    def catch_up(self, state: Message) -> None:
        """Take up the trajectories of a gateway that was here before."""
        self.cap = state.get("cap")
        for row in state.get("running", ()):
            name = row["name"]
            if name in self.running:
                continue
            stored = self.journal.trajectory(name)
            if stored is not None and stored.fate:  # its end was not reported any more
                last = Turn(stored.turns[-1].generated) if stored.turns else Turn(0)
                ended = stored.fate == "ended"
                self._tell(Ended(0.0, name, row["epoch"], last) if ended else Aborted(0.0, name, row["epoch"]))
                continue
            self.running[name] = self._taken_up(row, stored)

    def carry_out(self, command: Command) -> None:
        """A command of the core."""
        match command:
            case Place():
                self._place(command)
            case Pause():
                for name in command.trajectories:
                    self._pause(name)
            case Resume():
                self._resume(command)
            case Abort():
                self.abort(command.trajectories)
            case Cap():
                self.cap = command.tokens
            case Repack():
                for move in command.moves:
                    self._send(move.trajectory, move.target)
            case Park():
                live = self.running.get(command.trajectory)
                if live is not None:
                    live.cache = command.cache
            case _:
                raise AssertionError(f"{command} is not for a gateway")

    def notice(self, notice: Message) -> None:
        """Engines have come, gone, or have new weights."""
        if "engines" in notice:
            known = {str(entry.upstream): entry.upstream for entry in self.engines.values()}
            rows = {int(number): row for number, row in notice["engines"].items()}
            fresh = {number: Upstream.of(row["url"]) for number, row in rows.items()}
            self.engines = {
                number: EngineEntry(
                    known.get(str(fresh[number]), fresh[number]), row["epoch"], row["version"], row["gpus"]
                )
                for number, row in rows.items()
            }

    def _taken_up(self, row: Message, stored: StoredTrajectory | None) -> LiveTrajectory:
        turns = () if stored is None else stored.turns
        live = LiveTrajectory(
            row["name"],
            "" if stored is None else stored.group,
            row["version"],
            row["context"] if stored is None else stored.context,
            row["epoch"],
            row["turns"],
            sum(turn.generated for turn in turns[: row["turns"]]),
            turns[row["turns"] - 1].generated if 0 < row["turns"] <= len(turns) else 0,
        )
        if row["doing"] == "tool":
            live.doing, live.turn = "tool", row["turns"] + 1
            live.last = turns[-1].generated if turns else 0
        elif row["doing"] == "paused":
            live.held = True
        elif len(turns) > row["turns"]:  # it was answered, and the report was lost
            self._finish(live, turns[row["turns"]], {})
        elif row["replica"] is not None:
            live.placed = Place(live.name, row["replica"], epoch=live.epoch)
            live.place_came.set()
        return live

    def _place(self, command: Place) -> None:
        live = self.running.get(command.trajectory)
        if live is None:
            self._early[command.trajectory] = command
            return
        before, live.epoch = live.epoch, command.epoch
        if live.held:
            if before != command.epoch:
                self._tell(Paused(0.0, live.name, live.epoch, live.generated + live.so_far.count))
            return
        live.placed = command
        if live.asked is not None and not live.stopping:  # its engine is gone for the core: what it says is too late
            live.asked.abandon()
        live.place_came.set()

    def _pause(self, name: str) -> None:
        live = self.running.get(name)
        if live is None or live.held:
            return
        live.held = True
        if live.doing == "running":
            self._stop(live)
        elif live.doing == "waiting":
            live.placed = None
            live.place_came.clear()
            self._tell(Paused(0.0, name, live.epoch, live.generated + live.so_far.count))

    def _resume(self, command: Resume) -> None:
        live = self.running.get(command.trajectory)
        if live is None or not live.held:
            return
        live.held, live.since = False, 0
        if live.wanted is not None:
            self._tell(Returned(0.0, live.name, live.epoch, live.wanted))
            live.wanted = None
        elif live.doing != "tool":
            live.epoch += 1
            self._tell(Resumed(0.0, live.name, live.epoch, command.left))

    def _send(self, name: str, target: int) -> None:
        live = self.running.get(name)
        if live is None:
            return
        if live.doing == "running":
            self._stop(live)
        live.epoch += 1
        self._tell(Sent(0.0, name, live.epoch, target))

    def _stop(self, live: LiveTrajectory) -> None:
        """Have a turn's engine stop, and answer with the tokens so far."""
        assert live.placed is not None
        entry = self.engines.get(live.placed.replica)
        live.stopping = True
        if entry is not None:
            body = orjson.dumps({"request_ids": _engine_names(_identity(live))})
            _look_later(asyncio.ensure_future(_post(entry.upstream, "/abort_requests", body)))

    # -- one turn -----------------------------------------------------------------------------------------------

    def _start(self, request: TurnRequest) -> LiveTrajectory:
        version = max((entry.version for entry in self.engines.values()), default=0)
        live = LiveTrajectory(request.trajectory, request.group, version, request.prompt_tokens)
        self.journal.begin(live.name, live.group, version, live.context)
        self.running[live.name] = live
        early = self._early.pop(live.name, None)
        if early is not None:
            live.epoch, live.placed = early.epoch, early
            live.place_came.set()
            return live
        prompt = request.prompt or request.group or live.name
        self._tell(Begun(0.0, live.name, prompt, live.context, version, group=live.group))
        return live

    def _want(self, live: LiveTrajectory, request: TurnRequest) -> None:
        """The client of a trajectory whose tool ran is back: it wants the next turn."""
        if live.doing != "tool":
            return
        told, live.tool = live.tool, None
        returned = max(0, request.prompt_tokens - live.context) if told is None or told.tokens is None else told.tokens
        latency = (time.monotonic() - live.called) * self._settings.speed
        over = Turn(live.last, "tool" if told is None else told.tool, "ok" if told is None else told.outcome, returned)
        over.latency = latency
        live.doing, live.context = "waiting", live.context + returned
        if live.held:
            live.wanted = over
        else:
            self._tell(Returned(0.0, live.name, live.epoch, over))

    async def _run(self, live: LiveTrajectory, request: TurnRequest) -> StoredTurn:
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
            await self._ask(live, request, entry, _Asking(cap, stream, self._cached_at(live, place, entry)))
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
        answer = live.asked = await entry.upstream.ask("POST", path, headers, body)
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
        self.journal.add(live.name, stored)
        self._finish(live, stored, so_far.versions)
        return stored

    def _finish(self, live: LiveTrajectory, stored: StoredTurn, versions: dict[int, int]) -> None:
        live.turn += 1
        live.generated += stored.generated
        live.last, live.context = stored.generated, stored.prompt_tokens + stored.generated
        live.doing, live.placed = "tool", None
        live.called = live.seen = time.monotonic()
        if self._settings.counts_tokens:
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
            self._finish(live, StoredTurn(live.turn, live.context, 0, {}), {})
            live.turn -= 1  # it can be asked for again
            raise TurnRefused(problem.status if problem.status < 500 else 502, problem.message)
        await asyncio.sleep(0.1 * 2**errors)
        return errors + 1

    def _known(self, name: str) -> LiveTrajectory:
        live = self.running.get(name)
        if live is None:
            raise TurnRefused(404, "no such trajectory, or it is over")
        live.seen = time.monotonic()
        return live

    def _tell(self, *events: Event) -> None:
        if events:
            self._report(*events)


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


def _identity(live: LiveTrajectory) -> str:
    """Of a turn's request to an engine."""
    return f"{live.name}.{live.turn}.{live.epoch}"


def _engine_names(identity: str) -> list[str]:
    """What vLLM calls a request that was sent with an id: as a completion, and as a chat."""
    return [f"cmpl-{identity}-0", f"chatcmpl-{identity}"]


def _answered(stored: StoredTrajectory, turn: int | None) -> StoredTurn:
    if turn is not None and turn < len(stored.turns):
        return stored.turns[turn]
    raise TurnRefused(410, f"this trajectory is over: {stored.fate}")


def _look(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _look_later(task: asyncio.Future[None]) -> None:
    task.add_done_callback(lambda done: None if done.cancelled() else (done.exception(), None)[1])


async def _post(upstream: Upstream, path: str, body: bytes) -> None:
    answer = await upstream.ask("POST", path, _JSON, body)
    await answer.whole()
