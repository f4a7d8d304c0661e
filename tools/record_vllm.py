"""Writes down how a real vLLM server answers every call of `VllmEngine`, for tests that replay it.

    python tools/record_vllm.py http://127.0.0.1:8000 OTHER_WEIGHTS OUT.json

The server is one of the small model, started with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode; OTHER_WEIGHTS is a
folder of the same model. Of the page of metrics only vLLM's own values are kept, without buckets.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from steelyard.live.engines.api import EngineError, PauseMode, WeightUpdate
from steelyard.live.engines.http import Call, EngineHttp, Reply
from steelyard.live.engines.vllm import VllmEngine

Step = tuple[str, str]  # a call of the client, and a word for it
TOKENS = [7, 8, 17, 9, 10, 20, 4, 7, 8, 17, 9]
_LEFT_OUT = re.compile(r"^(?!vllm:).*\n|^.*_(?:bucket|created)\{.*\n", re.MULTILINE)


class RecordingHttp(EngineHttp):
    """Writes down what is asked and answered."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.rows: list[dict[str, Any]] = []

    async def ask(self, call: Call) -> Reply:
        reply = await super().ask(call)
        text = reply.body.decode()
        row = {"method": call.method, "path": call.path, "query": call.query, "body": call.body}
        if call.path == "/metrics":
            text = _LEFT_OUT.sub("", text)
        self.rows.append({**row, "status": reply.status, "answer": text})
        return reply


class RecordedVllm(VllmEngine):
    """A client whose calls are written down."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._http = self.recording = RecordingHttp(url)


def steps(other: str) -> list[Step]:
    """The calls of the client, in order. The last fails on purpose, after which the engine cannot be used."""
    return [
        *plain("health", "ready", "load", "model", "weight_version", "logprobs"),
        *[("pause", "keep"), *plain("ready", "reset_prefix_cache", "resume", "resume")],
        *[("pause", "wait"), *plain("resume"), ("pause", "abort"), *plain("resume")],
        *[("abort", "cmpl-nobody-0"), *plain("abort", "sleep", "ready", "wake", "ready", "logprobs")],
        *[("pause", "keep"), *plain("reset_prefix_cache"), ("update_weights", other), *plain("weight_version")],
        *plain("resume", "logprobs", "load"),
        ("update_weights", f"{other}-missing"),
    ]


def plain(*names: str) -> list[Step]:
    """Calls without a word."""
    return [(name, "") for name in names]


async def carried_out(engine: VllmEngine, name: str, word: str) -> Any:
    """What a call returns, as JSON has it; of an error, which call failed."""
    acts: dict[str, Callable[[], Awaitable[Any]]] = {
        "health": engine.health,
        "ready": engine.ready,
        "load": engine.load,
        "model": engine.model,
        "weight_version": engine.weight_version,
        "logprobs": lambda: engine.logprobs(TOKENS),
        "pause": lambda: engine.pause(cast(PauseMode, word)),
        "resume": engine.resume,
        "abort": lambda: engine.abort([word] if word else None),
        "sleep": lambda: engine.sleep(1),
        "wake": engine.wake,
        "reset_prefix_cache": engine.reset_prefix_cache,
        "update_weights": lambda: engine.update_weights(WeightUpdate("1", word)),
    }
    try:
        found = await acts[name]()
    except EngineError as problem:
        return f"error: {problem.what}"
    return found if isinstance(found, bool | str | list | None) else list(vars(found).values())


async def record(url: str, other: str, out: Path) -> None:
    """Make all calls once, and write them to a file."""
    engine = RecordedVllm(url)
    version = json.loads((await engine.recording.ask(Call("GET", "/version", 5.0))).body)["version"]
    rows: list[dict[str, Any]] = []
    for name, word in steps(other):
        engine.recording.rows = []
        result = await carried_out(engine, name, word)
        rows.append({"call": name, "word": word, "result": result, "http": engine.recording.rows})
    await engine.close()
    out.write_text(json.dumps({"vllm": version, "calls": rows}, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
