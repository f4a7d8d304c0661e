"""`python -m bench.emulate`: what clients of an emulated engine measure, beside a simulation of the same requests.

The server runs in a process of its own. The client sends token ids, streams, and takes a time at every token.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from steelyard import scenario_from_dict, simulate
from steelyard.sim import Result

_LENGTHS = {
    "prompt": {"kind": "lognormal", "median": 512, "p95": 2048},
    "output": {"kind": "lognormal", "median": 150, "p95": 400},
}
_CASES: dict[str, dict[str, Any]] = {
    "10 requests/s": {"arrivals": {"kind": "poisson", "rate": 10}, "requests": 200},
    "40 requests/s": {"arrivals": {"kind": "poisson", "rate": 40}, "requests": 600},
    "200 at once": {"arrivals": {"kind": "burst"}, "requests": 200},
}


@dataclass
class _Seen:
    """Seconds at which a client sent a request and got each part of the answer, and tokens so far."""

    sent: float = 0.0
    at: list[float] = field(default_factory=list)
    tokens: int = 0


def _scenario(workload: dict[str, Any]) -> dict[str, Any]:
    fleet = {"gpu": "h200"}
    return {
        "name": "emulated",
        "model": "llama-3.1-8b",
        "fleet": fleet,
        "workload": {**workload, **_LENGTHS},
        "seed": 1,
    }


async def _ask(port: int, number: int, prompt: int, output: int, seen: _Seen) -> None:
    """One streamed completion over a connection of its own, by hand: libraries take longer than tokens."""
    ids = np.random.default_rng(number).integers(0, 1 << 17, prompt).tolist()
    body = json.dumps({"prompt": ids, "max_tokens": output, "ignore_eos": True, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    seen.sent = time.monotonic()
    writer.write(head.encode() + body)
    while data := await reader.read(1 << 16):
        if b'"text": "' in data:
            seen.at.append(time.monotonic())
    seen.tokens = output  # parts can hold several tokens, where the server was late
    writer.close()


async def _load(port: int, result: Result) -> list[_Seen]:
    """Send a simulation's requests at their times."""
    table = result.requests
    seen = [_Seen() for _ in table["id"]]
    await _ask(port, 0, 16, 4, _Seen())  # so that nothing is used for the first time
    await asyncio.sleep(0.5)
    begun = time.monotonic() + 0.1

    async def send(place: int) -> None:
        await asyncio.sleep(max(0.0, begun + float(table["arrival"][place]) - time.monotonic()))
        await _ask(port, place, int(table["prompt"][place]), int(table["output"][place]), seen[place])

    await asyncio.gather(*(send(place) for place in range(len(seen))))
    return seen


def _measured(seen: list[_Seen]) -> dict[str, float]:
    first = np.array([each.at[0] - each.sent for each in seen])
    tokens = np.array([each.tokens for each in seen])
    between = np.array([(each.at[-1] - each.at[0]) / max(1, each.tokens - 1) for each in seen])[tokens > 1]
    whole = max(each.at[-1] for each in seen) - min(each.sent for each in seen)
    return {
        "TTFT mean": float(first.mean()),
        "TTFT p50": float(np.percentile(first, 50)),
        "TPOT mean": float(between.mean()),
        "tokens/s": float(tokens.sum()) / whole,
    }


def _simulated(result: Result) -> dict[str, float]:
    summary = result.summary
    assert summary.ttft.mean and summary.ttft.p50 and summary.tpot.mean
    return {
        "TTFT mean": summary.ttft.mean,
        "TTFT p50": summary.ttft.p50,
        "TPOT mean": summary.tpot.mean,
        "tokens/s": summary.throughput.output_tokens_per_s,
    }


def main() -> None:
    """Print measured and simulated figures of every case."""
    table = Table("requests", "figure", "measured", "simulated", "difference", box=None)
    for name, workload in _CASES.items():
        content = _scenario(workload)
        result = simulate(scenario_from_dict(content))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "emulated.json"
            path.write_text(json.dumps(content), encoding="utf-8")
            command = [sys.executable, "-m", "steelyard", "emulate", str(path), "--port", "0"]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline().split("/v1")[0].rsplit(":", 1)[1])
                measured = _measured(asyncio.run(_load(port, result)))
            finally:
                server.terminate()
                server.wait()
        for figure, expected in _simulated(result).items():
            found = measured[figure]
            table.add_row(name, figure, f"{found:.5g}", f"{expected:.5g}", f"{found / expected - 1:+.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
