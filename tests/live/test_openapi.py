"""The gateway's published interface, and what a fuzzer finds that does not hold to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from schemathesis.engine import events, from_schema

from steelyard.live.access import Access
from steelyard.live.gateway import Gateway
from steelyard.live.openapi import described
from steelyard.live.rules import GatewayRules
from support.emulated import served
from support.gateways import HOST, fleet_of, placing_desk, serving

TOKEN = "operator-token-0123456789"
EXAMPLES = 15  # of each operation, drawn the same way every time
FROM_ENGINES = ("POST /v1/completions", "POST /v1/chat/completions")  # engines check most of their bodies
Mode = tuple[bool, bool]  # whether there is a fleet, whether there are trajectories
MODES: list[Mode] = [(True, False), (False, True), (True, True)]


@asynccontextmanager
async def gateway(folder: Path, mode: Mode, tokens: bool = False) -> AsyncIterator[int]:
    """A gateway in front of an emulated engine."""
    (folder / "tokens").write_text(f"operator {TOKEN}\n")
    access = Access.read(folder / "tokens") if tokens else Access()
    async with served(1000.0) as (engines, _):
        urls = [str(engine.base_url) for engine in engines]
        fleet = fleet_of(urls) if mode[0] else None
        desk = placing_desk(folder, urls)[0] if mode[1] else None
        async with serving(Gateway(fleet, GatewayRules(access), desk)) as port:
            yield port


def failures(port: int) -> tuple[list[str], int]:
    """What a fuzzer finds, and how many checks it made."""
    off = {"enabled": False}
    config = schemathesis.Config.from_dict(
        {
            "headers": {"Authorization": f"Bearer {TOKEN}"},
            "generation": {"max-examples": EXAMPLES, "deterministic": True, "database": "none"},
            "phases": {"stateful": off},
            "request-timeout": 10.0,
            "checks": {"positive_data_acceptance": off},  # of a prompt that is too long, say
            "operations": [{"include-name": name, "checks": {"negative_data_rejection": off}} for name in FROM_ENGINES],
        }
    )
    schema = schemathesis.openapi.from_url(f"http://{HOST}:{port}/openapi.json", config=config)
    found, made = [], 0
    for event in from_schema(schema).execute():
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
        if isinstance(event, events.ScenarioFinished):
            for check in (each for checks in event.recorder.checks.values() for each in checks):
                made += 1
                if check.failure_info is not None:
                    found.append(f"{event.label}: {check.failure_info.failure}\n{check.failure_info.code_sample}")
    return found, made


@pytest.mark.parametrize("mode", MODES, ids=["fleet", "trajectories", "both"])
def test_a_fuzzer_finds_nothing(tmp_path: Path, mode: Mode) -> None:
    async def run() -> None:
        async with gateway(tmp_path, mode, tokens=True) as port:
            found, made = await asyncio.to_thread(failures, port)
            assert not found, "\n\n".join(found[:5])
            assert made > 500

    asyncio.run(run())


@pytest.mark.parametrize("mode", MODES, ids=["fleet", "trajectories", "both"])
def test_other_methods_and_paths_are_refused(tmp_path: Path, mode: Mode) -> None:
    async def run() -> None:
        async with (
            gateway(tmp_path, mode) as port,
            httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=20) as client,
        ):
            document = (await client.get("/openapi.json")).json()
            for path, operations in document["paths"].items():
                url = path.replace("{trajectory}", "t1")
                allowed = {name.upper() for name in operations if name in ("get", "post")}
                for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE"} - allowed:
                    answer = await client.request(method, url)
                    assert answer.status_code == 405, (method, url)
                    assert set(answer.headers["allow"].split(", ")) == allowed
                assert (await client.get(url + "/")).status_code in (404, 405), url
            for url in ("/", "/v1", "/docs", "/v1/embeddings", "/openapi", "/openapi.json.bak", "/v1/trajectories"):
                for method in ("GET", "POST"):
                    assert (await client.request(method, url)).status_code == 404, url

    asyncio.run(run())


def test_what_is_described_follows_from_the_mode() -> None:
    def paths(**modes: bool) -> dict[str, Any]:
        found: dict[str, Any] = described(**modes)["paths"]
        return found

    alone = paths(fleet=True, trajectories=False, tokens=False)
    assert not [path for path in alone if "trajectories" in path]
    assert "409" not in alone["/v1/completions"]["post"]["responses"] and "security" not in alone["/metrics"]["get"]
    both = paths(fleet=True, trajectories=True, tokens=True)
    assert {path.rpartition("/")[2] for path in both if "trajectories" in path} == {
        *("{trajectory}", "tool_return", "end", "abort")
    }
    assert {"401", "403", "409", "410"} <= set(both["/v1/completions"]["post"]["responses"])
    assert both["/metrics"]["get"]["security"] and "security" not in both["/health"]["get"]
