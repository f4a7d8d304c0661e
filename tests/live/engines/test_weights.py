"""New weights: engines that take them go on, and any other stays paused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, Response

from steelyard.emulate.openai import logprob_of
from steelyard.emulate.replica import EmulatedReplica
from steelyard.live.engines.api import EngineApi, PauseMode, WeightUpdate
from steelyard.live.engines.connect import connect
from steelyard.live.engines.http import CallLimits
from steelyard.live.engines.probe import FLOAT32, WeightProbe
from steelyard.live.engines.vllm import VllmEngine
from steelyard.live.engines.weights import EngineSync, SyncReport, sync_engine, sync_weights
from support.emulated import served
from support.fake_engine import FakeEngine, always, faked, hang

Test = Callable[[list[EngineApi], list[EmulatedReplica], list[httpx.AsyncClient]], Awaitable[None]]
SEQUENCES = (tuple(range(100, 140)), (7, 8, 9))


def probes(version: str) -> list[WeightProbe]:
    """The trainer's log-probs, if it had an emulated engine's weights."""
    logprob = logprob_of(version)
    return [
        WeightProbe(tokens, tuple(logprob(place, token) for place, token in enumerate(tokens) if place))
        for tokens in SEQUENCES
    ]


def emulated(test: Test, replicas: int = 2) -> None:
    async def run() -> None:
        async with served(50.0, replicas=replicas) as (clients, own):
            engines = [connect("emulated", str(each.base_url), limits=CallLimits(score=5.0)) for each in clients]
            try:
                await test(engines, own, clients)
            finally:
                for engine in engines:
                    await engine.close()

    asyncio.run(run())


async def sync(engines: list[EngineApi], version: str, pause: PauseMode = "keep") -> SyncReport:
    return await sync_weights(engines, WeightUpdate(version, f"weights/{version}"), probes(version), FLOAT32, pause)


def test_good_engines_are_updated_and_requests_go_on() -> None:
    async def test(engines: list[EngineApi], replicas: list[EmulatedReplica], clients: list[httpx.AsyncClient]) -> None:
        body = {"prompt": "a b", "max_tokens": 2000, "ignore_eos": True}
        kept = asyncio.ensure_future(clients[0].post("/v1/completions", json=body))
        while not replicas[0].engine.running:
            await asyncio.sleep(0.002)
        report = await sync(engines, "1")
        assert [each.outcome for each in report.engines] == ["updated"] * 2 and not report.quarantined
        assert [each.engine for each in report.engines] == [engine.url for engine in engines]
        assert all(each.verdict is not None and each.verdict.difference < 1e-9 for each in report.engines)
        assert all(0 < each.unchecked < each.seconds for each in report.engines)
        assert not any(replica.paused for replica in replicas)
        assert [replica.weights.version for replica in replicas] == ["1", "1"]
        assert (await kept).json()["choices"][0]["finish_reason"] == "length"

    emulated(test)


def test_an_engine_that_says_yes_and_keeps_old_weights_is_quarantined() -> None:
    async def test(engines: list[EngineApi], replicas: list[EmulatedReplica], clients: list[httpx.AsyncClient]) -> None:
        await clients[1].post("/emulate/fault", json={"kind": "stale"})
        report = await sync(engines, "1", "abort")
        good, bad = report.engines
        assert good.outcome == "updated" and not replicas[0].paused
        assert report.quarantined == (bad,) and bad.paused and replicas[1].paused
        assert "differ from the trainer's" in bad.why and bad.engine in bad.why
        assert replicas[1].weights.version == "1"  # it says so
        again = await sync(engines, "1")
        assert [each.outcome for each in again.engines] == ["already", "quarantined"] and replicas[1].paused
        await clients[1].post("/emulate/fault", json={"kind": "none"})
        assert [each.outcome for each in (await sync(engines, "1")).engines] == ["already", "updated"]
        assert not replicas[1].paused

    emulated(test)


def test_an_engine_that_has_the_version_is_only_probed_and_goes_on_if_it_was_left_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(engines: list[EngineApi], replicas: list[EmulatedReplica], _: list[httpx.AsyncClient]) -> None:
        await sync(engines, "1")
        await engines[0].pause("keep")  # as if a controller had ended in between
        updates: list[str] = []
        for replica in replicas:
            monkeypatch.setattr(replica.weights, "update", updates.append)
        report = await sync(engines, "1")
        assert [each.outcome for each in report.engines] == ["already"] * 2
        assert not updates and not any(replica.paused for replica in replicas)

    emulated(test)


def test_a_dead_engine_does_not_keep_others_from_their_weights() -> None:
    async def test(engines: list[EngineApi], replicas: list[EmulatedReplica], _: list[httpx.AsyncClient]) -> None:
        replicas[0].crash()
        await asyncio.sleep(0.1)
        dead, good = (await sync(engines, "1")).engines
        assert dead.outcome == "quarantined" and "connect" in dead.why.lower() and not dead.paused
        assert good.outcome == "updated"

    emulated(test)


def test_probes_are_needed() -> None:
    with pytest.raises(ValueError, match="at least one"):
        asyncio.run(sync_engine(VllmEngine("http://127.0.0.1:1"), UPDATE, [], FLOAT32))


PROBE = WeightProbe((10, 20, 30), (-1.5, -0.25))  # what the contracts answer
UPDATE = WeightUpdate("7", "weights/7")


class Versions:
    """A vLLM whose version is "6", and becomes another one when it is updated."""

    def __init__(self, engine: FakeEngine, after: str = "7") -> None:
        self._now, self._after = "6", after
        engine.instead["/weight_info"] = self._info
        engine.instead["/update_weight_version"] = self._update

    async def _info(self, _: Any) -> Response:
        return JSONResponse({"weight_version": self._now})

    async def _update(self, body: Any) -> Response:
        self._now = self._after
        return JSONResponse({"success": True, "new_version": body["new_version"]})


def of_fake(
    prepare: Callable[[FakeEngine], object],
    *,
    kind: str = "vllm",
    pause: PauseMode = "keep",
    scores_paused: bool = False,
    seconds: float = 10.0,
) -> tuple[EngineSync, list[str]]:
    """What becomes of one fake engine, and the orders it got."""

    async def run() -> tuple[EngineSync, list[str]]:
        async with faked(kind) as (url, engine):
            prepare(engine)
            limits = CallLimits(weights=seconds, score=seconds)
            api: EngineApi = VllmEngine(url, "", limits, scores_paused=scores_paused)
            if kind == "sglang":
                api = connect("sglang", url, limits=limits)
            report = await sync_weights([api], UPDATE, [PROBE], FLOAT32, pause)
            await api.close()
            return report.engines[0], [path for method, path in engine.calls if method == "POST"]

    return asyncio.run(run())


def test_orders_come_in_the_right_order() -> None:
    found, orders = of_fake(Versions)
    update = ["/pause", "/reset_prefix_cache", "/collective_rpc", "/update_weight_version"]
    assert found.outcome == "updated" and orders == [*update, "/resume", "/v1/completions"]
    found, orders = of_fake(Versions, scores_paused=True)
    assert found.outcome == "updated" and orders == [*update, "/v1/completions", "/resume"]
    assert found.unchecked == 0
    found, orders = of_fake(lambda engine: None)  # it has version 7
    assert found.outcome == "already" and orders == ["/resume", "/v1/completions"]


def _wrong_scores(engine: FakeEngine) -> None:
    Versions(engine)
    scores = [None, {"20": {"logprob": -1.5}}, {"30": {"logprob": -0.26}}]
    engine.instead["/v1/completions"] = always(200, json.dumps({"choices": [{"prompt_logprobs": scores}]}))


def _failing(path: str, status: int = 500) -> Callable[[FakeEngine], None]:
    def prepare(engine: FakeEngine) -> None:
        Versions(engine)
        engine.instead[path] = hang if status == 0 else always(status, '{"error": "broken"}')

    return prepare


@pytest.mark.parametrize("scores_paused", [False, True])
@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (_wrong_scores, "differ from the trainer's by 0.005"),
        (lambda engine: Versions(engine, after="6"), "says that it has version 6, not 7"),
        (_failing("/reset_prefix_cache"), "broken"),
        (_failing("/collective_rpc"), "broken"),
        (_failing("/collective_rpc", 0), "no answer within"),
        (_failing("/weight_info", 503), "broken"),
        (_failing("/v1/completions"), "broken"),
        (_failing("/v1/completions", 0), "no answer within"),
        (_failing("/v1/completions", 200), "not understood"),
    ],
    ids=["scores", "version", "reset", "update", "update-hangs", "info", "probe", "probe-hangs", "probe-garbage"],
)
def test_whatever_fails_the_engine_stays_paused(prepare: Any, said: str, scores_paused: bool) -> None:
    seconds = 0.2 if "no answer" in said else 10.0
    found, orders = of_fake(prepare, scores_paused=scores_paused, seconds=seconds)
    assert found.outcome == "quarantined" and said in found.why and found.paused
    assert orders[-1] == "/pause"
    assert "/resume" not in orders or not scores_paused


def test_an_engine_that_cannot_be_paused_is_reported_as_such() -> None:
    found, orders = of_fake(_failing("/pause"))
    assert found.outcome == "quarantined" and not found.paused and "/collective_rpc" not in orders


def test_sglang_is_updated_with_its_own_calls() -> None:
    def prepare(engine: FakeEngine) -> None:
        async def info(_: Any) -> Response:
            updated = ("POST", "/update_weights_from_disk") in engine.calls
            return JSONResponse({"weight_version": "7" if updated else "default"})

        engine.instead["/model_info"] = info

    found, orders = of_fake(prepare, kind="sglang", pause="abort")
    update = ["/pause_generation", "/flush_cache", "/update_weights_from_disk"]
    assert found.outcome == "updated" and orders == [*update, "/continue_generation", "/generate"]

    def busy(engine: FakeEngine) -> None:
        prepare(engine)
        engine.instead["/flush_cache"] = always(400, "Flush cache failed.\n")

    found, orders = of_fake(busy, kind="sglang")
    assert found.outcome == "quarantined" and "Flush cache failed" in found.why
    assert orders == ["/pause_generation", "/flush_cache", "/pause_generation"]


def test_cancelling_leaves_no_engine_running_unchecked() -> None:
    async def run() -> None:
        async with faked("vllm") as (url, engine):
            Versions(engine)
            engine.instead["/v1/completions"] = hang
            api = connect("vllm", url)
            syncing = asyncio.ensure_future(sync_weights([api], UPDATE, [PROBE], FLOAT32))
            while ("POST", "/v1/completions") not in engine.calls:
                await asyncio.sleep(0.005)
            syncing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await syncing
            assert engine.calls[-1] == ("POST", "/pause")
            await api.close()

    asyncio.run(run())
