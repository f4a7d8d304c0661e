"""Every call that a stack makes is served as its contract has it, and reaches one engine, all, or none."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from support.adapter_stack import engines, stack
from support.paths import ROOT

CONTRACTS = ROOT / "tests" / "live" / "adapters" / "contracts"
STACKS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(CONTRACTS.glob("*.json"))}
REACHES = {"none": 0, "one": 1, "all": 2}


def fits(found: Any, wanted: Any) -> bool:
    """Whether an answer has all that is wanted, of the same kinds. Lists have at least as many entries."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and fits(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        pairs = zip(found, wanted, strict=False) if isinstance(found, list) else ()
        return isinstance(found, list) and len(found) >= len(wanted) and all(fits(*pair) for pair in pairs)
    return isinstance(found, type(wanted))


async def said(client: httpx.AsyncClient, call: dict[str, Any], engine: str) -> httpx.Response:
    """The answer to a call; ENGINE stands for an engine's address."""
    written = json.loads(json.dumps(call).replace("ENGINE", engine))
    query = f"?{written['query']}" if "query" in written else ""
    body = {"json": written["body"]} if "body" in written else {}
    return await client.request(call["method"], call["path"] + query, headers=call.get("headers"), **body)


@pytest.mark.parametrize("name", STACKS)
def test_all_calls_are_served(name: str) -> None:
    async def run() -> None:
        async with engines(2) as own, stack(name, [each.url for each in own]) as (client, _):
            for call in STACKS[name]["calls"]:
                before = [len(each.calls) for each in own]
                answer = await said(client, call, own[0].url)
                assert answer.status_code == 200, (call["what"], answer.text)
                if call["answer"] is not None:
                    assert fits(answer.json(), call["answer"]), (call["what"], answer.text)
                reached = [
                    each for each, count in zip(own, before, strict=True)
                    if any(target.split("?")[0] == call["path"] for _, target in each.calls[count:])
                ]  # fmt: skip
                assert len(reached) == REACHES[call["reaches"]], call["what"]
                for each in reached:
                    target = call["path"] + (f"?{call['query']}" if "query" in call else "")
                    assert each.calls[-1] == (call["method"], target)

    asyncio.run(run())


@pytest.mark.parametrize("name", STACKS)
def test_what_is_not_in_a_contract_is_not_served(name: str) -> None:
    async def run() -> None:
        async with engines(1) as own, stack(name, [own[0].url]) as (client, _):
            known = {(call["method"], call["path"]) for call in STACKS[name]["calls"]}
            for path in ("/emulate/fault", "/shutdown", "/server_info", "/generate/", "/pause/", "/Pause"):
                assert (await client.post(path, json={})).status_code == 404
            for path in ("/pause", "/update_weights", "/collective_rpc", "/generate", "/flush_cache"):
                if ("POST", path) not in known:
                    assert (await client.post(path, json={})).status_code == 404
            assert not own[0].calls

    asyncio.run(run())


def test_the_check_sees_what_is_missing() -> None:
    wanted = {"choices": [{"token_ids": [0]}]}
    assert fits({"choices": [{"token_ids": [4, 5], "more": 1}], "more": 2}, wanted)
    short: list[Any] = [{}, [], {"choices": []}, {"choices": [{"token_ids": "4"}]}, {"choices": [{"token_ids": []}]}]
    for found in short:
        assert not fits(found, wanted)
