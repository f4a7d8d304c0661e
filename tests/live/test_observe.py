"""Metrics of gateway and controller, the dashboard that shows them, and traces."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from steelyard.balance.commands import Place
from steelyard.balance.events import Begun, Called, StepTrained
from steelyard.balance.kinds import Command, Event
from steelyard.balance.log import Journal, is_event, read_event, read_header
from steelyard.balance.plan.questions import ChangePlan
from steelyard.balance.plan.world import Bucket, Plan, TrainOption
from steelyard.balance.pool import Drained, Failed, StepBegan
from steelyard.balance.settings import CoreSettings
from steelyard.emulate.replica import EmulatedReplica
from steelyard.errors import UserError
from steelyard.live.control import ControlServer, Handler
from steelyard.live.engines.vllm import EmulatedVllm
from steelyard.live.gateway import Gateway
from steelyard.live.keeper import Keeper, KeptEngine
from steelyard.live.observe import ControllerMetrics, GatewayMetrics, TurnWatch
from steelyard.live.rules import GatewayRules
from steelyard.live.tracing import ENDPOINT, Tracing, tracing_from_environment
from steelyard.posttrain.run import posttrain
from steelyard.scenario import posttrain_from_dict
from support.emulated import served
from support.gateways import HOST, fleet_of, placing_desk, serving
from support.paths import ROOT
from support.pool_world import Told, ended, make

SCENARIO: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 4},
    "mode": "asynchronous",
    "rollout": [{"tp": 1, "replicas": 3}],
    "training": {"dp": 2},
    "pool": "payoff",
    "steps": 4,
    "seed": 3,
}
DASHBOARD = ROOT / "deploy" / "grafana" / "steelyard.json"
Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def values(page: bytes | str) -> Values:
    """Samples of a page of metrics, by name and labels."""
    text = page.decode() if isinstance(page, bytes) else page
    families = text_string_to_metric_families(text)
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples
    }


def of(found: Values, name: str, **labels: str) -> float:
    return found[f"steelyard_{name}", tuple(sorted(labels.items()))]


# -- the gateway ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def gateway(
    folder: Path, tracing: Tracing | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, EmulatedReplica]]:
    async with served(50.0) as (engines, replicas):
        urls = [str(engine.base_url) for engine in engines]
        app = Gateway(fleet_of(urls), GatewayRules(), placing_desk(folder, urls)[0], tracing)
        async with (
            serving(app) as port,
            httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=20) as client,
        ):
            yield client, replicas[0]


def with_gateway(folder: Path, test: Callable[[httpx.AsyncClient, EmulatedReplica], Awaitable[None]]) -> None:
    async def run() -> None:
        async with gateway(folder) as (client, replica):
            await test(client, replica)

    asyncio.run(run())


def test_the_gateway_counts_what_it_does(tmp_path: Path) -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        async def ask(status: int, session: str = "", **body: Any) -> None:
            headers = {"x-session-id": session} if session else {}
            body = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True, **body}
            assert (await client.post("/v1/completions", json=body, headers=headers)).status_code == status

        await ask(200)
        await ask(200, stream=True)
        await ask(400, messages=1)
        await ask(200, "a", turn=0)
        await ask(200, "a", turn=0)
        await ask(200, "b", stream=True)
        await ask(409, "b", turn=7)
        await ask(400, "c", max_tokens=-1)
        await client.post("/v1/trajectories/a/end", json={})
        found = values((await client.get("/metrics")).content)
        assert of(found, "gateway_requests_total", status="200") == 6
        assert of(found, "gateway_requests_total", status="400") == 2
        assert of(found, "gateway_requests_total", status="409") == 1
        assert of(found, "gateway_requests_open") == 0
        assert of(found, "gateway_turns_total", outcome="answered") == 2
        assert of(found, "gateway_turns_total", outcome="repeated") == 1
        assert of(found, "gateway_turns_total", outcome="refused") == 2
        assert of(found, "gateway_turn_seconds_count") == 2
        assert of(found, "gateway_first_token_seconds_count") == 2
        assert of(found, "gateway_tokens_total", kind="prompt") == 6
        assert of(found, "gateway_tokens_total", kind="generated") == 8
        assert of(found, "gateway_engines", state="up") == 2  # the one engine, for both kinds of requests
        assert of(found, "gateway_trajectories", state="tool") == 2  # b, and c whose turn was refused

    with_gateway(tmp_path, test)


def test_retries_and_engines_that_are_down_are_counted(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(50.0, replicas=2) as (engines, replicas):
            app = Gateway(fleet_of([str(engine.base_url) for engine in engines]), GatewayRules())
            async with (
                serving(app) as port,
                httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=20) as client,
            ):
                replicas[0].crash()
                await asyncio.sleep(0.1)
                for _ in range(2):
                    answer = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
                    assert answer.status_code == 200
                found = values((await client.get("/metrics")).content)
                assert of(found, "gateway_retries_total") == 1
                assert of(found, "gateway_engines", state="up") == of(found, "gateway_engines", state="down") == 1

    asyncio.run(run())


def test_a_client_that_leaves_its_turn_is_counted_and_the_turn_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(50.0) as (engines, _):
            desk, reported = placing_desk(tmp_path, [str(engine.base_url) for engine in engines], places=False)
            async with (
                serving(Gateway(None, GatewayRules(), desk)) as port,
                httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=20) as client,
            ):
                body = {"prompt": [1, 2], "max_tokens": 8, "ignore_eos": True, "turn": 0}
                headers = {"x-session-id": "a"}
                asking = asyncio.ensure_future(client.post("/v1/completions", json=body, headers=headers))
                while not desk.running:
                    await asyncio.sleep(0.01)
                asking.cancel()
                found = values((await client.get("/metrics")).content)
                while of(found, "gateway_turns_total", outcome="left") == 0:
                    await asyncio.sleep(0.01)
                    found = values((await client.get("/metrics")).content)
                assert of(found, "gateway_trajectories", state="waiting") == 1
                desk.carry_out(Place("a", 0, epoch=1))
                while not [event for event in reported if isinstance(event, Called)]:
                    await asyncio.sleep(0.01)
                again = await client.post("/v1/completions", json={**body, "stream": True}, headers=headers)
                assert again.text.count('"finish_reason":"length"') == 1 and again.text.endswith("data: [DONE]\n\n")

    asyncio.run(run())


# -- the controller ---------------------------------------------------------------------------------------------


@cache
def recorded() -> tuple[CoreSettings, tuple[Event, ...], int]:
    """A run's settings, its events, and the samples that it trained on."""
    file = io.StringIO()
    posttrain(posttrain_from_dict(SCENARIO), journal=Journal(file, "test"))
    first, *rows = [json.loads(line) for line in file.getvalue().splitlines()]
    events = tuple(read_event(row, "log").event for row in rows if is_event(row))
    samples = sum(len(row["trajectories"]) for row in rows if row["kind"] == "TrainOn")
    return read_header(first, "log").settings, events, samples


class Heard(ControlServer):
    """Also lets a test give commands."""

    def on(self, kind: type[Command], handler: Handler) -> None:
        super().on(kind, handler)
        self.heard = {**getattr(self, "heard", {}), kind: handler}


def with_controller(folder: Path, test: Callable[[Heard, tuple[Event, ...]], None]) -> None:
    async def run() -> None:
        settings, events, _ = recorded()
        server = Heard()
        server.open(folder / "run.db", settings)
        try:
            test(server, events)
        finally:
            server.controller.store.close()

    asyncio.run(run())


def tell(server: ControlServer, metrics: ControllerMetrics, events: tuple[Event, ...]) -> None:
    for event in events:
        server.controller.tell([event])
        metrics.decided(event)


def test_a_run_as_its_metrics_tell_it(tmp_path: Path) -> None:
    def test(server: Heard, events: tuple[Event, ...]) -> None:
        metrics = ControllerMetrics(server)
        half = len(events) // 2
        tell(server, metrics, events[:half])
        found = values(metrics.text())
        running = server.controller.core.placement.rollouts.running
        states = [value for (name, _), value in found.items() if name == "steelyard_controller_trajectories"]
        assert sum(states) == len(running) > 0 and len(states) == 5
        assert of(found, "controller_seats", state="busy") > 0
        assert of(found, "controller_members", role="gateway") == 0
        tell(server, metrics, events[half:])
        server.controller.tell([events[-1]])  # again
        found = values(metrics.text())
        assert of(found, "controller_events_decided_total") == len(events) + 1
        assert of(found, "controller_events_dropped_total", reason="repeated") == 1
        assert of(found, "controller_steps_total") == 4 and of(found, "controller_weight_version") == 3
        assert of(found, "controller_weight_lag") == 1
        assert of(found, "controller_sample_staleness_versions_count") == recorded()[2]
        trained = [event.at for event in events if isinstance(event, StepTrained)]
        assert of(found, "controller_step_seconds_count") == 3
        assert of(found, "controller_step_seconds_sum") == pytest.approx(trained[-1] - trained[0])
        assert of(found, "controller_pool_replicas", state="rollout") >= 0
        assert of(found, "controller_fence") == 1

    with_controller(tmp_path, test)


def test_staleness_is_the_versions_since_a_sample_began(tmp_path: Path) -> None:
    def test(server: Heard, events: tuple[Event, ...]) -> None:
        metrics = ControllerMetrics(server)
        tell(server, metrics, events)
        begun = {event.trajectory: event.version for event in events if isinstance(event, Begun)}
        server.controller.flush()
        orders = [json.loads(line) for _, _, line in server.controller.store.commands() if '"TrainOn"' in line]
        stale = [order["step"] - begun[name] for order in orders for name in order["trajectories"]]
        assert of(values(metrics.text()), "controller_sample_staleness_versions_sum") == sum(stale) > 0

    with_controller(tmp_path, test)


def test_a_controller_that_takes_over_knows_versions_of_what_runs(tmp_path: Path) -> None:
    def test(server: Heard, events: tuple[Event, ...]) -> None:
        half = len(events) // 2
        server.controller.tell(events[:half])
        metrics = ControllerMetrics(server)
        tell(server, metrics, events[half:])
        count = of(values(metrics.text()), "controller_sample_staleness_versions_count")
        assert 0 < count < recorded()[2]

    with_controller(tmp_path, test)


def test_log_writes_and_plans(tmp_path: Path) -> None:
    def plan(seconds: float) -> Plan:
        return Plan(TrainOption("dp1", 1), (Bucket(1, 1, 100),), 1.0, 1.0, seconds)

    def test(server: Heard, events: tuple[Event, ...]) -> None:
        metrics = ControllerMetrics(server)
        metrics.wrote(0.002)
        assert of(values(metrics.text()), "controller_log_write_seconds_sum") == 0.002
        for step, at in enumerate((100.0, 150.0)):
            metrics.decided(StepTrained(at, step))
        server.heard[ChangePlan](ChangePlan(1, plan(50.0), plan(30.0)))
        found = values(metrics.text())
        assert of(found, "controller_plan_gain_seconds", kind="predicted") == 20.0
        assert ("steelyard_controller_plan_gain_seconds", (("kind", "realised"),)) not in found
        for step, at in enumerate((190.0, 222.0, 260.0, 9999.0), 2):
            metrics.decided(StepTrained(at, step))
        found = values(metrics.text())
        assert of(found, "controller_plan_changes_total") == 1
        assert of(found, "controller_plan_gain_seconds", kind="realised") == pytest.approx(50 - (40 + 32 + 38) / 3)

    with_controller(tmp_path, test)


def test_the_pool_and_its_moves(tmp_path: Path) -> None:
    def test(server: Heard, events: tuple[Event, ...]) -> None:
        metrics = ControllerMetrics(server)
        pool = server.controller.core.pool = make(Told())
        pool.decide(StepBegan(0.0, 0, 0))
        pool.decide(ended(0, train=102.0, rollout=100.0, at=10.0))
        found = values(metrics.text())
        assert of(found, "controller_pool_replicas", state="draining") == 2
        assert of(found, "controller_pool_replicas", state="rollout") == 1
        first, second = [member for member in pool.members.values() if member.moving]
        pool.decide(Drained(11.0, first.replica, first.epoch))
        pool.decide(Failed(12.0, second.replica, second.epoch, "lost"))
        found = values(metrics.text())
        assert of(found, "controller_pool_replicas", state="requested") == 1
        assert of(found, "controller_pool_moves_total", to="training", outcome="rolled back") == 1
        entry = pool.ledger.entries[0]
        entry.after.append(entry.before - 3.0)
        found = values(metrics.text())
        assert of(found, "controller_pool_gain_seconds", kind="realised") == pytest.approx(3.0)
        assert of(found, "controller_pool_gain_seconds", kind="predicted") == entry.predicted

    with_controller(tmp_path, test)


def test_engines_of_a_run(tmp_path: Path) -> None:
    async def never(*_: Any) -> str:
        raise AssertionError("not called")

    def test(server: Heard, events: tuple[Event, ...]) -> None:
        keeper = Keeper(server, never)
        metrics = ControllerMetrics(server, keeper)
        server.controller.tell(events)
        for number, (version, why) in enumerate(((4, ""), (2, ""), (-1, "its weights are not what was sent"))):
            engine = KeptEngine(number, 1, 8, 1000, EmulatedVllm("http://127.0.0.1:1"), version, quarantined=why)
            keeper.engines[number] = engine
        keeper.engines[7] = KeptEngine(7, 1, 8, 1000, EmulatedVllm("http://127.0.0.1:1"))
        found = values(metrics.text())
        assert of(found, "controller_engines", state="up") == 2
        assert of(found, "controller_engines", state="down") == 1
        assert of(found, "controller_engines", state="quarantined") == 1
        assert of(found, "controller_engine_weight_lag", engine="0") == 0
        assert of(found, "controller_engine_weight_lag", engine="1") == 2
        assert len([name for name, _ in found if name == "steelyard_controller_engine_weight_lag"]) == 2

    with_controller(tmp_path, test)


# -- the dashboard ----------------------------------------------------------------------------------------------


def exported(folder: Path) -> dict[str, set[str]]:
    """Names of all samples that can be on a page, with their labels."""
    found: Values = values(GatewayMetrics().text(None, None))
    filled = GatewayMetrics()
    filled.requests.labels(200).inc()
    found |= values(filled.text(None, None))

    def test(server: Heard, events: tuple[Event, ...]) -> None:
        metrics = ControllerMetrics(server, Keeper(server, _unused))
        tell(server, metrics, events)
        server.controller.tell([events[-1]])
        pool = server.controller.core.pool = make(Told())
        pool.decide(StepBegan(0.0, 0, 0))
        pool.decide(ended(0, train=101.0, rollout=100.0, at=10.0))
        (member,) = [each for each in pool.members.values() if each.moving]
        pool.decide(Failed(12.0, member.replica, member.epoch, "lost"))
        pool.ledger.entries[0].after.append(1.0)
        same = Plan(TrainOption("dp1", 1), (), 1.0, 1.0, 1.0)
        server.heard[ChangePlan](ChangePlan(1, same, same))
        keeper = metrics._keeper
        assert keeper is not None
        keeper.engines[0] = KeptEngine(0, 1, 8, 1000, EmulatedVllm("http://127.0.0.1:1"), 0)
        found.update(values(metrics.text()))

    with_controller(folder, test)
    names: dict[str, set[str]] = {}
    for name, labels in found:
        names.setdefault(name, set()).update(label for label, _ in labels)
    return names


async def _unused(*_: Any) -> str:
    return ""


def test_every_expression_of_the_dashboard_uses_metrics_that_exist(tmp_path: Path) -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    known = exported(tmp_path)
    shown: set[str] = set()
    for expression in expressions:
        used = re.findall(r"steelyard_\w+", expression)
        assert used and set(used) <= set(known), expression
        labels = {label.strip() for each in re.findall(r"by \(([^)]*)\)", expression) for label in each.split(",")}
        assert all(labels <= known[name] for name in used), expression
        assert not re.findall(r"\{[^}]*\}", expression), "filters would need a check, too"
        shown |= {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    bases = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in known}
    assert {base for base in bases if f"{base}_total" not in known} == shown, "everything is shown"
    legends = [target["legendFormat"] for panel in board["panels"] for target in panel.get("targets", ())]
    for expression, legend in zip(expressions, legends, strict=True):
        grouped = {label.strip() for each in re.findall(r"by \(([^)]*)\)", expression) for label in each.split(",")}
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


# -- traces -----------------------------------------------------------------------------------------------------

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traced() -> tuple[Tracing, InMemorySpanExporter]:
    provider, kept = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return Tracing(provider), kept


def identity(span: ReadableSpan) -> tuple[str, str, str]:
    """The trace, the span and its parent, as hexadecimal digits."""
    context = span.get_span_context()
    assert context is not None
    parent = "" if span.parent is None else f"{span.parent.span_id:016x}"
    return f"{context.trace_id:032x}", f"{context.span_id:016x}", parent


async def listening(heads: list[bytes]) -> asyncio.Server:
    """An engine that remembers the heads of its requests."""
    answer = json.dumps({"choices": [], "usage": {}}).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (head := await reader.readuntil(b"\r\n\r\n")) and (told := re.search(rb"content-length: (\d+)", head)):
            await reader.readexactly(int(told[1]))
            heads.append(head)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)

    return await asyncio.start_server(serve, HOST, 0)


def test_a_request_is_a_span_between_its_client_and_its_engine() -> None:
    async def run() -> None:
        heads: list[bytes] = []
        tracing, kept = traced()
        engine = await listening(heads)
        app = Gateway(fleet_of([f"http://{HOST}:{engine.sockets[0].getsockname()[1]}"]), GatewayRules(), None, tracing)
        async with serving(app) as port, httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=20) as client:
            for headers in ({"traceparent": PARENT}, {}, {"traceparent": "00-wrong"}):
                answer = await client.post("/v1/completions", json={"prompt": "the prompt"}, headers=headers)
                assert answer.status_code == 200
        engine.close()
        spans = kept.get_finished_spans()
        assert [span.name for span in spans] == ["engine", "request"] * 3
        asked, served = identity(spans[0]), identity(spans[1])
        assert served[0] == asked[0] == PARENT.split("-")[1]
        assert served[2] == PARENT.split("-")[2] and asked[2] == served[1]
        assert f"traceparent: 00-{asked[0]}-{asked[1]}-01".encode() in heads[0]
        assert identity(spans[3])[2] == identity(spans[5])[2] == ""
        assert "the prompt" not in "".join(span.to_json() for span in spans)

    asyncio.run(run())


def test_an_engine_that_is_gone_has_a_span_of_its_own() -> None:
    async def run() -> None:
        tracing, kept = traced()
        app = Gateway(fleet_of([f"http://{HOST}:9"] * 2), GatewayRules(), None, tracing)
        async with serving(app) as port, httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=20) as client:
            assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 503
        assert [span.name for span in kept.get_finished_spans()] == ["engine", "engine", "request"]

    asyncio.run(run())


def test_a_turn_is_a_span(tmp_path: Path) -> None:
    async def run() -> None:
        tracing, kept = traced()
        async with gateway(tmp_path, tracing) as (client, _):
            headers = {"x-session-id": "a", "traceparent": PARENT}
            answer = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}, headers=headers)
            assert answer.status_code == 200
        (turn,) = [span for span in kept.get_finished_spans() if span.name == "turn"]
        assert turn.attributes is not None and turn.attributes["steelyard.trajectory"] == "a"
        assert identity(turn)[2] == PARENT.split("-")[2]

    asyncio.run(run())


def test_what_a_desk_tells_is_counted_and_traced() -> None:
    tracing, kept = traced()
    metrics = GatewayMetrics()
    watch, headers = TurnWatch(metrics, tracing), {"x-request-id": "r"}
    with tracing.serving("turn", {"traceparent": PARENT}, "a"):
        with watch.waiting():
            pass
        with watch.engine(3, headers):
            pass
    watch.again()
    waited, asked, turn = kept.get_finished_spans()
    assert [waited.name, asked.name] == ["wait for placement", "engine"]
    assert identity(waited)[2] == identity(asked)[2] == identity(turn)[1]
    assert headers["traceparent"].split("-")[1:3] == list(identity(asked)[:2]) and headers["x-request-id"] == "r"
    assert asked.attributes is not None and asked.attributes["steelyard.engine"] == 3
    found = values(metrics.text(None, None))
    assert of(found, "gateway_placement_wait_seconds_count") == of(found, "gateway_retries_total") == 1
    plain, bare = TurnWatch(metrics), {"x-request-id": "r"}
    with plain.waiting(), plain.engine(0, bare):
        pass
    assert bare == {"x-request-id": "r"}
    assert of(values(metrics.text(None, None)), "gateway_placement_wait_seconds_count") == 2


def test_nothing_is_imported_unless_traces_are_wanted() -> None:
    code = (
        "import sys; from steelyard.live.gateway import Gateway; from steelyard.live.rules import GatewayRules;"
        "Gateway(None, GatewayRules());"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_the_environment_asks_for_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    assert tracing_from_environment() is None
    monkeypatch.setenv(ENDPOINT, f"http://{HOST}:9")
    assert isinstance(tracing_from_environment(), Tracing)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UserError, match=r"is set, which needs opentelemetry\.sdk\.trace"):
        tracing_from_environment()
