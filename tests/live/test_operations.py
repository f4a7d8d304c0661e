"""Running a run: addresses and tokens, a controller that hands over, its page for Prometheus, and the view of it."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from typer.testing import CliRunner

from steelyard.balance.commands import Start
from steelyard.balance.settings import CoreSettings
from steelyard.cli import app, control_top
from steelyard.errors import UserError
from steelyard.live.access import RunTokens, make_tokens
from steelyard.live.addresses import LOCAL, METRICS, TOKENS, PartHost, RunAddresses
from steelyard.live.client import GatewayLink
from steelyard.live.controller import Controller
from steelyard.live.emulated.run import EmulatedRun
from steelyard.live.member import Address, RunMember
from steelyard.live.operate import ask_controller
from steelyard.live.runs import is_over
from steelyard.live.state import state_for
from steelyard.live.store import Fenced, Store, log_rows
from steelyard.live.supervise import CONTROLLER
from steelyard.live.upstream import Upstream
from steelyard.scenario import posttrain_from_dict
from support.live_logs import SCENARIO, check, check_replay
from support.live_parts import Parts

PATIENCE = 120.0  # seconds until a run that hangs is given up


def run(folder: Path, trouble: Callable[[Parts], Awaitable[None]], host: PartHost = LOCAL, speed: float = 40.0) -> None:
    """Run a scenario to its end while something happens to it, and check all that must hold."""
    scenario = posttrain_from_dict(SCENARIO)

    async def main() -> None:
        made = EmulatedRun.at_free_ports(scenario, folder, speed)
        parts = Parts(replace(made, host=host))
        parts.start(*parts.run.parts)
        troubling = asyncio.ensure_future(trouble(parts))
        try:
            async with asyncio.timeout(PATIENCE):
                await troubling
                await parts.finished()
        finally:
            troubling.cancel()
            await parts.close()

    asyncio.run(main())
    check_replay(folder / "controller.db")
    check(folder / "controller.db", scenario.steps, 8, whole=True)


async def events(parts: Parts, count: int) -> None:
    """Wait until the controller has had so many events."""
    while True:
        server = parts.controller.server
        if server.is_open and server.controller.events >= count:
            return
        await asyncio.sleep(0.005)


# -- addresses --------------------------------------------------------------------------------------------------


def test_an_address_is_where_its_part_listens_now(tmp_path: Path) -> None:
    here, there = (RunAddresses(tmp_path, PartHost.of(host)) for host in ("127.0.0.2", "127.0.0.3"))
    assert here.find(4000, "gateway") == ("127.0.0.1", 4000), "nobody has listened yet"
    with closing(here.listen(0, "gateway")) as first:
        port = first.getsockname()[1]
        assert there.find(4000, "gateway") == ("127.0.0.2", port)
        with closing(here.listen(port)) as second:  # taken, so it is another one
            assert here.find(port) == ("127.0.0.2", second.getsockname()[1]) != ("127.0.0.2", port)
    with closing(there.listen(port, "gateway")):
        assert here.url(4000, "gateway") == f"http://127.0.0.3:{port}"
        assert str(here.upstream(4000, "gateway", "")) == f"127.0.0.3:{port}"
    (tmp_path / "addresses" / "gateway").write_text("nothing\n")
    with pytest.raises(UserError, match="must be HOST:PORT"):
        here.find(4000, "gateway")


def test_a_client_looks_for_a_gateway_that_does_not_answer() -> None:
    found = [Upstream("127.0.0.2", 1), Upstream("127.0.0.2", 1), Upstream("127.0.0.3", 1)]
    link = GatewayLink(lambda: found.pop(0))
    first = link.upstream
    link.look_again()
    assert link.upstream is first
    link.look_again()
    assert str(link.upstream) == "127.0.0.3:1"


@pytest.mark.parametrize(("host", "local"), [("127.0.0.9", True), ("::1", True), ("0.0.0.0", False), ("node-7", False)])
def test_without_tokens_nobody_else_can_reach_a_part(tmp_path: Path, host: str, local: bool) -> None:
    part_host = PartHost.of(host)
    assert part_host.is_local == local
    assert part_host.reach == ("127.0.0.1" if host == "0.0.0.0" else host)
    if not local:
        with pytest.raises(UserError, match="tokens: no such file; tokens are needed"):
            RunAddresses(tmp_path, part_host).listen(0)


def test_tokens_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "run" / TOKENS
    make_tokens(path)
    made = RunTokens.read(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len({made.of("client"), made.of("engine"), made.of("operator")}) == 3
    assert made.of("engine") not in repr(made)
    make_tokens(path)
    assert RunTokens.read(path) == made
    own = tmp_path / "own"
    own.write_text("client " + "c" * 20 + "\nengine " + "e" * 20 + "\n")
    with pytest.raises(UserError, match="no token of the scope operator"):
        make_tokens(path, own)
    own.write_text(own.read_text() + "operator " + "o" * 20 + "\n")
    make_tokens(path, own)
    assert RunTokens.read(path).of("operator") == "o" * 20
    with pytest.raises(UserError, match="no such file"):
        make_tokens(path, tmp_path / "none")


def test_parts_ask_each_other_for_tokens(tmp_path: Path) -> None:
    make_tokens(tmp_path / TOKENS)
    tokens = RunTokens.read(tmp_path / TOKENS)

    async def status(url: str, token: str = "", body: dict[str, str] | None = None) -> int:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
            answer = await client.request("POST" if body else "GET", url, headers=headers, json=body)
        return answer.status_code

    async def trouble(parts: Parts) -> None:
        await events(parts, 20)
        addresses, made = parts.run.addresses, parts.run
        assert isinstance(made, EmulatedRun)
        engine, gateway = addresses.url(made.engines[0]), addresses.url(made.gateway, "gateway")
        page = addresses.url(0, METRICS)
        for path in ("/health", "/metrics", "/v1/models"):
            assert await status(engine + path) == 401
            assert await status(engine + path, tokens.of("client")) == 403
            assert await status(engine + path, tokens.of("engine")) == 200
        turn = {"prompt": "a"}
        assert await status(f"{gateway}/v1/completions", "", turn) == 401
        assert await status(f"{gateway}/v1/completions", "x" * 40, turn) == 401
        assert await status(f"{gateway}/v1/completions", tokens.of("client"), turn) == 400, "it has no session"
        assert await status(f"{gateway}/v1/trajectories/none", tokens.of("client")) == 403
        assert await status(f"{gateway}/v1/trajectories/none", tokens.of("engine")) == 404
        assert await status(f"{page}/health") == 200
        assert await status(f"{page}/metrics") == 401
        assert await status(f"{page}/metrics", tokens.of("client")) == 403
        assert await status(f"{page}/metrics", tokens.of("operator")) == 200
        for token in ("", "wrong" * 8, tokens.of("engine"), tokens.of("client")):
            with pytest.raises(UserError, match="not a member of this run"):
                address = Address(*made.address()[:2], token)
                await asyncio.to_thread(ask_controller, address, {"what": "status"})
        assert (await asyncio.to_thread(ask_controller, made.address("operator"), {"what": "status"}))["steps"] == 3
        await refused(made)

    async def refused(made: EmulatedRun) -> None:
        """A member with a wrong token is told so, and never connected."""

        class Nobody:
            def catch_up(self, state: Any) -> None:
                raise AssertionError("it was let in")

            carry_out = notice = catch_up

        host, port, _ = made.address()
        member = RunMember(lambda: Address(host, port, "wrong" * 8), "sampler", Nobody())
        trying = asyncio.ensure_future(member.run())
        await asyncio.sleep(0.5)
        assert not member.connected.is_set()
        trying.cancel()

    run(tmp_path, trouble, PartHost.of("127.0.0.2"), speed=10.0)


# -- a controller that hands over -------------------------------------------------------------------------------


def test_a_controller_that_is_told_to_stop_saves_and_hands_over(tmp_path: Path) -> None:
    store = tmp_path / "controller.db"

    async def trouble(parts: Parts) -> None:
        for fence, count in enumerate((10, 40, 70), 1):
            await events(parts, count)
            await parts.stop(CONTROLLER)
            with closing(sqlite3.connect(store)) as db:
                assert db.execute("SELECT number FROM fence").fetchone() == (fence,)
                ((written, carried_out),) = db.execute(
                    "SELECT (SELECT COUNT(*) FROM events), carried_out FROM fence"
                ).fetchall()
                assert written == carried_out == db.execute("SELECT MAX(events) FROM snapshots").fetchone()[0] >= count
            assert not is_over(parts.run)
            parts.start(CONTROLLER)
            assert not {name for name, task in parts.tasks.items() if task.done()}, "all others go on"

    run(tmp_path, trouble)
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("SELECT number FROM fence").fetchone() == (4,)
        assert db.execute("SELECT value FROM facts WHERE name = 'over'").fetchone() == ("yes",)


def settings() -> CoreSettings:
    from steelyard.posttrain.core import core_settings
    from steelyard.posttrain.setup import set_up_posttrain

    return core_settings(set_up_posttrain(posttrain_from_dict(SCENARIO)))


def test_a_store_for_several_machines_has_no_memory_of_its_own(tmp_path: Path) -> None:
    """Fences hold, and it can be read while it is written."""
    from steelyard.balance.events import WeightsPublished

    path, told = tmp_path / "run.db", list[Any]()
    first = Controller.begin(path, settings(), lambda identity, command: told.append(command), shared=True)
    first.tell([WeightsPublished(0.0, 0)])
    first.flush()
    assert not (tmp_path / "run.db-wal").exists()
    assert len(list(log_rows(path))) == 2 + len(told) > 2
    second = Controller.resume(path, lambda identity, command: None, shared=True)
    with pytest.raises(Fenced):
        first.tell([WeightsPublished(1.0, 1)])
    second.close()
    for shared in (False, True):  # it goes on on one machine, and on several again
        Store(path, shared=shared).close()
        assert len(list(log_rows(path))) == 2 + len(told)


def test_new_members_are_told_what_still_matters(tmp_path: Path) -> None:
    from steelyard.balance.events import WeightsPublished

    controller = Controller.begin(tmp_path / "run.db", settings(), lambda identity, command: None)
    controller.tell([WeightsPublished(0.0, 0)])
    state = state_for("sampler", controller)
    started = [group for row in state["starts"] for group in row["groups"]]
    assert started == sorted(started, key=int) == state["unfinished"] and started
    assert all(row["kind"] == Start.__name__ for row in state["starts"])
    assert state_for("trainer", controller)["orders"] == []
    assert state_for("gateway", controller)["cap"] is None
    controller.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scenario.json", "--resume"], "--resume: needs --out"),
        (["scenario.json", "--host", "127.0.0.2"], "--host: is for --on processes"),
        (["scenario.json", "--out", "run", "--resume"], "its run has another scenario"),
        (["top"], "control top: give a run's folder"),
        (["upgrade", "run", "2"], "control upgrade: give a run's folder"),
        (["upgrade", "run"], "no controller answers"),
        (["top", "nothing"], "no such file"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    EmulatedRun.at_free_ports(posttrain_from_dict(SCENARIO), tmp_path / "run", 40.0).write()
    (tmp_path / "scenario.json").write_text(json.dumps({**SCENARIO, "steps": 7}))
    result = CliRunner().invoke(app, ["control", *words])
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)


# -- watching it ------------------------------------------------------------------------------------------------


def test_the_controller_serves_its_metrics(tmp_path: Path) -> None:
    pages: list[str] = []

    async def trouble(parts: Parts) -> None:
        await events(parts, 40)
        async with httpx.AsyncClient(base_url=parts.run.addresses.url(0, METRICS), trust_env=False) as client:
            pages.append((await client.get("/metrics")).text)
            assert [(await client.get(path)).status_code for path in ("/", "/health")] == [404, 200]
            assert (await client.post("/metrics")).status_code == 404

    run(tmp_path, trouble)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(pages[0])
        for sample in family.samples
    }
    assert found["steelyard_controller_events_decided_total",] >= 40
    assert found["steelyard_controller_log_write_seconds_count",] > 0
    assert found["steelyard_controller_engines", "up"] == 2
    assert found["steelyard_controller_members", "gateway"] == 1


def test_top_goes_on_until_the_run_is_over_or_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = EmulatedRun.at_free_ports(posttrain_from_dict(SCENARIO), tmp_path, 40.0)
    Controller.begin(made.store, settings(), lambda identity, command: None).close()

    def shown() -> str:
        written = io.StringIO()
        control_top.top(made, Console(file=written, force_terminal=True, width=100))
        return written.getvalue()

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("steelyard.cli.control_top.time.sleep", interrupt)
    assert "no controller has answered" in shown()
    store = Store(made.store)
    store.keep("over", "yes")
    store.close()
    assert "the run is over" in shown()
