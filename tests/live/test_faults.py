"""Engines that are slow, hang, have stale weights or answer late; a log that cannot be written; two controllers.

After each, nothing is lost or done twice, and no token counts that was made with other weights than it says.
"""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from steelyard.balance.commands import Abort, Place
from steelyard.balance.events import Called, Ended
from steelyard.balance.kinds import Command
from steelyard.live import client
from steelyard.live.addresses import HOST
from steelyard.live.emulated import agents
from steelyard.live.emulated.run import EmulatedRun
from steelyard.live.emulated.weights import update_emulated
from steelyard.live.engines.api import WeightUpdate
from steelyard.live.engines.condition import WatchRules
from steelyard.live.engines.http import CallLimits
from steelyard.live.engines.vllm import EmulatedVllm
from steelyard.live.hanging import HangWatch
from steelyard.live.keeper import KeptEngine
from steelyard.live.member import Address, RunMember
from steelyard.live.parts import ControllerPart, free_ports
from steelyard.live.runs import RunPart
from steelyard.live.store import Fenced, StoreFailure, log_rows
from steelyard.live.supervise import Supervisor
from steelyard.live.turns import COMPLETIONS, TurnRequest
from steelyard.live.wire import Message
from steelyard.records import Turn
from steelyard.scenario import posttrain_from_dict
from support.emulated import served
from support.gateways import placing_desk
from support.live_logs import SCENARIO, check, check_replay, check_versions
from support.live_parts import Parts

PATIENCE = 200.0  # seconds until a run that hangs is given up
STEPS = 3


def new_run(folder: Path, speed: float, **changes: Any) -> EmulatedRun:
    run = EmulatedRun.at_free_ports(posttrain_from_dict({**SCENARIO, "steps": STEPS, **changes}), folder, speed)
    run.write()
    return run


def run_with(parts: Parts, trouble: Callable[[Parts], Awaitable[None]]) -> list[dict[str, Any]]:
    """Run to the end while something goes wrong. Returns the events, after checking all that must hold."""

    async def main() -> None:
        parts.start(*parts.run.parts)
        troubling = asyncio.ensure_future(trouble(parts))
        try:
            async with asyncio.timeout(PATIENCE):
                await parts.finished()
                await troubling
        finally:
            troubling.cancel()
            await parts.close()

    asyncio.run(main())
    assert isinstance(parts.run, EmulatedRun)
    return checked(parts.run)


def checked(run: EmulatedRun) -> list[dict[str, Any]]:
    check_replay(run.store)
    check_versions(run.store, run.folder / "journal.db")
    return check(run.store, STEPS, 8, whole=True)


async def fault(run: EmulatedRun, engine: int, kind: str, factor: float = 1.0) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        url = f"http://{HOST}:{run.engines[engine]}/emulate/fault"
        assert (await client.post(url, json={"kind": kind, "factor": factor})).status_code == 200


async def until(condition: Callable[[], object], period: float = 0.01) -> None:
    while not condition():
        await asyncio.sleep(period)


def rows_of(run: EmulatedRun) -> list[dict[str, Any]]:
    return [row for _, row in log_rows(run.store)][1:]


def stored(run: EmulatedRun, query: str) -> list[str]:
    """What the store has now, as any process can see."""
    with suppress(sqlite3.Error):
        db = sqlite3.connect(f"{run.store.as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            return [str(row[0]) for row in db.execute(query)]
        finally:
            db.close()
    return []


def kinds_of(run: EmulatedRun, replica: int) -> list[str]:
    """How often a replica has come up and gone."""
    where = f"line LIKE '%\"kind\":\"Replica%' AND json_extract(line, '$.replica') = {replica}"
    return stored(run, f"SELECT json_extract(line, '$.kind') FROM events WHERE {where} ORDER BY place")


def events_of(run: EmulatedRun) -> int:
    return len(stored(run, "SELECT place FROM events"))


def events_in(parts: Parts) -> int:
    server = parts.controller.server if "controller" in parts.running else None
    return server.controller.events if server is not None and server.is_open else 0


# -- engines ------------------------------------------------------------------------------------------------------


def test_turns_go_around_a_slow_engine(tmp_path: Path) -> None:
    run = new_run(tmp_path, 40.0)
    slow_from: list[int] = []

    async def trouble(parts: Parts) -> None:
        await until(lambda: events_in(parts) >= 3)
        await fault(run, 0, "slow", 30.0)
        slow_from.append(events_in(parts))

    run_with(Parts(run), trouble)
    rows = rows_of(run)
    later = next(index for index, row in enumerate(rows) if row.get("id") == [0, slow_from[0]])
    placed = Counter(row["replica"] for row in rows[later:] if row["kind"] == "Place")
    assert placed[1] > placed[0]


def test_a_hung_engine_is_taken_down_and_comes_back(tmp_path: Path) -> None:
    """Real processes. It still answers that it is well. Its turns go elsewhere, and it is back once it makes tokens."""
    run = new_run(tmp_path, 10.0)

    async def main() -> None:
        running = asyncio.ensure_future(Supervisor(run).run())
        async with asyncio.timeout(PATIENCE):
            await until(lambda: events_of(run) >= 20, 0.05)
            await fault(run, 0, "hang")
            log = tmp_path / "controller.log"
            await until(lambda: "engine 0 hangs" in log.read_text() and kinds_of(run, 0)[-1] == "ReplicaDown", 0.05)
            await fault(run, 0, "none")
            await until(lambda: kinds_of(run, 0)[-1] == "ReplicaUp", 0.05)  # a busy machine may miss it once more
            await running

    asyncio.run(main())
    checked(run)


def test_idle_and_paused_engines_do_not_hang() -> None:
    async def main() -> None:
        watch = HangWatch(WatchRules(stall_seconds=0.1, alone_seconds=0.1))
        async with served(1.0) as ((client,), (replica,)):
            api = EmulatedVllm(str(client.base_url))

            async def found(times: int, paused: bool = False) -> bool:
                for _ in range(times):
                    watch._looked.clear()  # else it looks once a second
                    if await watch.hangs(0, api, lambda: paused):
                        return True
                    await asyncio.sleep(0.15)
                return False

            assert not await found(3)  # idle
            body = {"prompt": "a", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
            running = asyncio.ensure_future(client.post("/v1/completions", json=body, timeout=60))
            await until(lambda: replica.engine.running)
            await api.pause("keep")
            assert not await found(4)  # somebody else has paused it
            assert not await found(4, paused=True)
            await api.resume()
            replica.hang()
            assert await found(200)
            replica.recover()
            assert await watch.generates(api)
            running.cancel()
            await api.close()

    asyncio.run(main())


def test_an_engine_with_stale_weights_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It acknowledges an update that has no effect. The probe finds out. It is back with weights that it really has."""
    ask = client.ask

    async def with_logprobs(
        gateway: client.GatewayLink, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> Any:
        return await ask(gateway, path, headers, {**body, "logprobs": 0} if "prompt" in body else body)

    monkeypatch.setattr(agents, "ask", with_logprobs)
    run = new_run(tmp_path, 40.0, mode="split")

    async def trouble(parts: Parts) -> None:
        await until(lambda: events_in(parts) >= 20)
        await fault(run, 0, "stale")
        await until(lambda: parts.controller.keeper.engines[0].quarantined)
        assert "log-probs differ" in parts.controller.keeper.engines[0].quarantined
        await until(lambda: not parts.controller.keeper.is_up(0))
        await fault(run, 0, "none")

    events = run_with(Parts(run), trouble)
    kinds = [row["kind"] for row in events if row.get("replica") == 0 and row["kind"].startswith("Replica")]
    assert kinds[:2] == ["ReplicaUp", "ReplicaDown"]


def test_an_engine_that_says_a_version_without_having_it_is_given_it() -> None:
    async def main() -> None:
        async with served(1000.0) as ((client,), (replica,)):
            engine = KeptEngine(0, 1, 1, 1, EmulatedVllm(str(client.base_url)))
            replica.weights.version = "3"  # and it answers with those of version 0
            assert await update_emulated(engine, WeightUpdate("3", "")) == ""
            assert replica.weights.answers == "3"
            replica.weights.version, replica.weights.stale = "4", True
            assert "log-probs differ" in await update_emulated(engine, WeightUpdate("4", ""))
            assert replica.paused
            await engine.api.close()

    asyncio.run(main())


def test_an_engine_that_a_killed_controller_left_paused_goes_on(tmp_path: Path) -> None:
    """The controller is killed between pausing an engine for new weights and resuming it."""
    run = new_run(tmp_path, 40.0)

    async def trouble(parts: Parts) -> None:
        await until(lambda: parts.controller.server.is_open and parts.controller.server.controller.core.published >= 1)
        await parts.kill("controller")
        async with httpx.AsyncClient() as client:
            await client.post(f"http://{HOST}:{run.engines[0]}/pause", params={"mode": "keep"})
        parts.start("controller")

    run_with(Parts(run), trouble)


class Cut:
    """A proxy before an engine, which holds its answers back while the network is cut."""

    def __init__(self, port: int) -> None:
        self.whole = asyncio.Event()
        self.whole.set()
        self.held = 0  # answers that were held back, in parts
        self._port = port

    async def serve(self, port: int) -> None:
        server = await asyncio.start_server(self._pass_on, HOST, port)
        async with server:
            await server.serve_forever()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            engine_reader, engine_writer = await asyncio.open_connection(HOST, self._port)
            await asyncio.gather(self._copy(reader, engine_writer, False), self._copy(engine_reader, writer, True))
        except OSError:
            writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                if answers and not self.whole.is_set():
                    self.held += 1
                    await self.whole.wait()
                writer.write(data)
        finally:
            writer.close()


class CutParts(Parts):
    """Parts whose first engine is behind a proxy."""

    def __init__(self, run: EmulatedRun) -> None:
        super().__init__(run)
        self.behind = free_ports(1)[0]
        self._apart = replace(run, engines=(self.behind, *run.engines[1:]))

    def start(self, *names: str) -> None:
        for name in names:
            run = self._apart if name == "engine-0" else self.run
            part: RunPart = run.part(name)
            self.running[name] = part
            self.tasks[name] = asyncio.ensure_future(part.run(asyncio.Event()))


def test_answers_that_come_late_do_not_count(tmp_path: Path) -> None:
    """The network to an engine is cut. It is given up, its turns run elsewhere, and then all its answers come."""
    run = new_run(tmp_path, 20.0)
    parts = CutParts(run)

    async def trouble(parts: Parts) -> None:
        assert isinstance(parts, CutParts)
        cut = Cut(parts.behind)
        proxy = asyncio.ensure_future(cut.serve(run.engines[0]))
        try:
            await until(lambda: events_in(parts) >= 20 and parts.controller.keeper.is_up(0))
            api = parts.controller.keeper.engines[0].api
            assert isinstance(api, EmulatedVllm)
            api._http.limits = CallLimits(look=0.2)
            cut.whole.clear()
            await until(lambda: not parts.controller.keeper.is_up(0))
            await until(lambda: cut.held >= 3)
            cut.whole.set()
            await parts.finished()
        finally:
            proxy.cancel()

    events = run_with(parts, trouble)
    assert [row for row in events if row["kind"] == "ReplicaDown" and row["replica"] == 0]
    called = Counter((row["trajectory"], row["epoch"]) for row in events if row["kind"] == "Called")
    assert set(called.values()) == {1}


@pytest.mark.parametrize("ends", [False, True])
def test_reports_that_cross_a_placement_are_told_again(tmp_path: Path, ends: bool) -> None:
    """A turn is over when its engine is given up, so its reports come with an epoch that does not count any more."""

    async def main() -> None:
        async with served(1000.0) as ((engine,), _):
            desk, told = placing_desk(tmp_path, [str(engine.base_url).rstrip("/")], places=False)
            running = asyncio.ensure_future(desk.turn(TurnRequest("a", COMPLETIONS, {"prompt": [1], "max_tokens": 2})))
            await until(lambda: desk.running)
            desk.carry_out(Place("a", 0, epoch=1))
            await running
            if ends:
                desk.end("a", None)
            assert [each.epoch for each in told if isinstance(each, Called | Ended)] == [1, 1][: 1 + ends]
            told.clear()
            desk.carry_out(Place("a", 0, epoch=2))
            assert told == [Ended(0.0, "a", 2, Turn(2)) if ends else Called(0.0, "a", 2, 2)]
            await desk.close()

    asyncio.run(main())


# -- the log ------------------------------------------------------------------------------------------------------


def _has_more(run: EmulatedRun | list[int], count: int) -> bool:
    return (len(run) if isinstance(run, list) else events_of(run)) > count


def test_a_controller_whose_disk_is_full_decides_nothing(tmp_path: Path) -> None:
    """Real processes. Its log cannot grow: it says so, ends, is started again, and goes on when there is room."""
    run = new_run(tmp_path, 20.0)
    codes: list[int] = []

    async def main() -> None:
        supervisor = Supervisor(run, lambda name, code: codes.append(code) if name == "controller" else None)
        running = asyncio.ensure_future(supervisor.run())
        async with asyncio.timeout(PATIENCE):
            for _ in range(2):
                await until(partial(_has_more, run, events_of(run) + 20), 0.05)  # so a controller is running
                died = len(codes)
                size = (tmp_path / "controller.db-wal").stat().st_size
                resource.prlimit(supervisor.pid("controller"), resource.RLIMIT_FSIZE, (size, size))
                await until(partial(_has_more, codes, died), 0.05)
            await running

    asyncio.run(main())
    checked(run)
    assert 0 not in codes
    said = [line for line in (tmp_path / "controller.log").read_text().splitlines() if "cannot be written" in line]
    assert len(said) == 2 and all(line.startswith("controller: ") for line in said)
    assert "Traceback" not in (tmp_path / "controller.log").read_text()


def test_commands_of_a_log_without_room_are_not_forgotten(tmp_path: Path) -> None:
    """Written later, they are those of the events that led to them."""
    run = new_run(tmp_path, 40.0)

    async def trouble(parts: Parts) -> None:
        for _ in range(2):
            await until(lambda: "controller" in parts.running and events_in(parts) >= 20)
            controller = parts.controller.server.controller
            db = controller.store._db
            db.execute("PRAGMA max_page_count = 1")  # no more than it has
            with pytest.raises(StoreFailure, match=r"cannot be written \(database or disk is full\)"):
                while True:
                    controller.store.keep("filler", "x" * 100_000)
            task = parts.tasks.pop("controller")
            with pytest.raises(StoreFailure):
                await task
            parts.start("controller")

    run_with(Parts(run), trouble)


# -- controllers --------------------------------------------------------------------------------------------------


class Obeyed:
    """A member's duties, which notes what it was told."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.notices: list[Message] = []

    def catch_up(self, state: Message) -> None:
        pass

    def carry_out(self, command: Command) -> None:
        self.commands.append(command)

    def notice(self, notice: Message) -> None:
        self.notices.append(notice)


def test_members_do_not_listen_to_a_controller_that_was_replaced(tmp_path: Path) -> None:
    """It has not noticed yet, and a member that knows its successor reaches it again."""
    run = new_run(tmp_path, 40.0)
    told = Obeyed()

    async def main() -> None:
        ports = free_ports(2)
        parts = [replace(run, control=port).part("controller") for port in ports]
        older, newer = (part for part in parts if isinstance(part, ControllerPart))
        tasks = [asyncio.ensure_future(older.run(asyncio.Event()))]
        await until(lambda: older.server.is_open)
        tasks.append(asyncio.ensure_future(newer.run(asyncio.Event())))
        await until(lambda: newer.server.is_open)
        at = [ports[1]]
        member = RunMember(lambda: Address(HOST, at[0]), "gateway", told)
        tasks.append(asyncio.ensure_future(member.run()))
        await member.connected.wait()
        at[0] = ports[0]
        tasks[1].cancel()  # the newer one is gone for a while
        await until(lambda: not member.connected.is_set())
        before = len(told.notices)
        tries = asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < tries:
            older.server.notify({"engines": {}})
            older.server._carry_out(older.server._last_command._replace(event=10**6), Abort(("anything",)))
            await asyncio.sleep(0.02)
        assert not member.connected.is_set() and not told.commands and len(told.notices) == before
        with pytest.raises(Fenced):
            await older.keeper._bring_to_target(KeptEngine(0, 1, 1, 1, EmulatedVllm("http://127.0.0.1:9")))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
