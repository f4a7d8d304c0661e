"""The client of vLLM against what real vLLM servers answered (recorded by tools/record_vllm.py)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from steelyard.live.engines.http import Call, EngineHttp, Reply
from steelyard.live.engines.vllm import VllmEngine
from tools.record_vllm import carried_out

RECORDED = sorted((Path(__file__).parent / "recorded").glob("vllm-*.json"))


class ReplayedHttp(EngineHttp):
    """Answers as the server did, if it is asked what the server was asked."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.rows: list[dict[str, Any]] = []

    async def ask(self, call: Call) -> Reply:
        row = self.rows.pop(0)
        asked = {"method": call.method, "path": call.path, "query": call.query, "body": call.body}
        assert asked == {name: row[name] for name in asked}
        return Reply(row["status"], row["answer"].encode())


class ReplayedVllm(VllmEngine):
    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self._http = self.replayed = ReplayedHttp()


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
def test_the_client_makes_of_real_answers_what_it_did(path: Path) -> None:
    recorded = json.loads(path.read_text())

    async def main() -> None:
        engine = ReplayedVllm()
        for each in recorded["calls"]:
            engine.replayed.rows = list(each["http"])
            assert await carried_out(engine, each["call"], each["word"]) == each["result"], each["call"]
            assert not engine.replayed.rows, f"{each['call']} asked for less"
        await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
def test_real_servers_behave_as_the_run_needs_it(path: Path) -> None:
    """Paused or asleep they are not ready, and a load that fails is told."""
    calls = json.loads(path.read_text())["calls"]
    told = [(each["call"], each["word"], each["result"]) for each in calls]
    ready = [place for place, (call, _, _) in enumerate(told) if call == "ready"]
    assert [told[place][2] for place in ready] == [True, False, False, True]
    assert told[-1] == ("update_weights", told[-1][1], "error: POST /collective_rpc")
    known = {each["result"] for each in calls if each["call"] == "weight_version"}
    assert known in ({None}, {"0", "1"})  # without versions, or first the one it was started with
