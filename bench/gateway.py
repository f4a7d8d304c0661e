"""`python -m bench.gateway`: what the gateway adds to the time to first token, beside direct access in the same run.

Two emulated engines, the gateway and the client are processes of their own on this machine. Requests go directly and
through the gateway in turn, while so many streams are open that each gets 20 tokens a second.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

_SCENARIO: dict[str, Any] = {
    "name": "behind",
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "h200", "replicas": 2},
    "engine": {"max_num_seqs": 1024},
    "workload": {"arrivals": {"kind": "burst"}, "requests": 1, "prompt": 64, "output": 64},
}
_SPEED = 0.125  # a step of 100 streams takes 6 ms on an H200: 20 tokens a second
_SECONDS = 15.0
_PROBES = 150


@contextmanager
def _process(*arguments: str) -> Iterator[list[str]]:
    """A command of ours until the end of the block, and the first lines it printed."""
    command = [sys.executable, "-m", "steelyard", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            count = 2 if arguments[0] == "emulate" else 1
            yield [process.stdout.readline() for _ in range(count)]
        finally:
            process.terminate()


def _port(line: str) -> int:
    return int(line.split("/v1")[0].rsplit(":", 1)[1])


async def _ask(port: int, tokens: int, until: float) -> float:
    """Stream a completion; seconds to its first token."""
    body = json.dumps({"prompt": list(range(64)), "max_tokens": tokens, "ignore_eos": True, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    begun = time.monotonic()
    writer.write(head.encode() + body)
    first = 0.0
    while data := await reader.read(1 << 16):
        if not first and b'"text"' in data:
            first = time.monotonic() - begun
        if time.monotonic() > until:
            break
    writer.close()
    return first


async def _measure(engines: list[int], gateway: int, streams: int) -> dict[str, list[float]]:
    """Times to first token, of requests sent in turn while streams are open through the gateway."""
    end = time.monotonic() + _SECONDS + 3
    background = [asyncio.ensure_future(_ask(gateway, 4096, end)) for _ in range(streams)]
    await asyncio.sleep(3)
    found: dict[str, list[float]] = {"direct": [], "gateway": []}
    for probe in range(_PROBES):
        found["direct"].append(await _ask(engines[probe % len(engines)], 1, end))
        found["gateway"].append(await _ask(gateway, 1, end))
        if time.monotonic() > end - 1:
            break
    await asyncio.gather(*background)
    return found


def main() -> None:
    """Print both for each number of streams."""
    table = Table("streams", "way", "p50 ms", "p99 ms", "requests", box=None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "behind.json"
        path.write_text(json.dumps(_SCENARIO), encoding="utf-8")
        for streams in (0, 200):
            with _process("emulate", str(path), "--port", "0", "--speed", str(_SPEED)) as lines:
                engines = [_port(line) for line in lines]
                addresses = [f"http://127.0.0.1:{port}" for port in engines]
                with _process("gateway", *addresses, "--port", "0", "--router", "least-outstanding") as (line,):
                    found = asyncio.run(_measure(engines, _port(line), streams))
            for way, times in found.items():
                p50, p99 = np.percentile(np.array(times) * 1e3, [50, 99])
                table.add_row(str(streams), way, f"{p50:.1f}", f"{p99:.1f}", str(len(times)))
    Console().print(table)


if __name__ == "__main__":
    main()
