"""`python -m bench.emulate`: what clients of an emulated engine measure, beside a simulation of the same requests.

The server is a process of its own, and this one is the client. Its requests are written and its connections are open
before the clock starts, and it does nothing but read and take times, since libraries take longer than tokens. The
simulation has the requests at the seconds at which they were sent: at 40 requests/s, moving each by 0.2 ms moves the
simulated mean TTFT by 1.4 % (standard deviation).
"""

from __future__ import annotations

import argparse
import gc
import json
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from steelyard import scenario_from_dict, simulate
from steelyard.sim import draw_workload, set_up
from steelyard.sim.setup import FleetSetup
from steelyard.workload import Workload

_LENGTHS = {
    "prompt": {"kind": "lognormal", "median": 512, "p95": 2048},
    "output": {"kind": "lognormal", "median": 150, "p95": 400},
}
_CASES: dict[str, dict[str, Any]] = {
    "10 requests/s": {"arrivals": {"kind": "poisson", "rate": 10}, "requests": 200},
    "40 requests/s": {"arrivals": {"kind": "poisson", "rate": 40}, "requests": 600},
    "200 at once": {"arrivals": {"kind": "burst"}, "requests": 200},
}
_FIRST = 0.3  # seconds from the start to the first request


@dataclass
class _Asked:
    """One request: its bytes, its connection, and the seconds at which it was sent and its tokens came."""

    due: float
    tokens: int
    data: bytes
    connection: socket.socket
    sent: float = 0.0
    at: list[float] = field(default_factory=list)


def _scenario(workload: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "emulated",
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h200"},
        "workload": {**workload, **_LENGTHS},
        "seed": 1,
    }


@contextmanager
def _server(content: dict[str, Any]) -> Iterator[int]:
    """The port of an emulated engine, until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "emulated.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        command = [sys.executable, "-m", "steelyard", "emulate", str(path), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                yield int(server.stdout.readline().split("/v1")[0].rsplit(":", 1)[1])
            finally:
                server.terminate()


def _asked(port: int, number: int, due: float, prompt: int, output: int) -> _Asked:
    ids = np.random.default_rng(number).integers(0, 1 << 17, prompt).tolist()
    body = json.dumps({"prompt": ids, "max_tokens": output, "ignore_eos": True, "stream": True}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _Asked(due, output, head.encode() + body, connection)


def _send(requests: list[_Asked]) -> None:
    """Send requests at their times from now on, and note when their tokens come."""
    waiting = sorted(requests, key=lambda each: each.due)[::-1]  # the next one last
    begun = time.monotonic() + _FIRST
    left = len(requests)
    with selectors.DefaultSelector() as selector:
        while left:
            pause = max(0.0, begun + waiting[-1].due - time.monotonic()) if waiting else None
            for key, _ in selector.select(pause):
                if _read(key.data):
                    selector.unregister(key.fileobj)
                    left -= 1
            while waiting and begun + waiting[-1].due <= time.monotonic():
                each = waiting.pop()
                each.sent = time.monotonic()
                each.connection.sendall(each.data)
                selector.register(each.connection, selectors.EVENT_READ, each)


def _read(asked: _Asked) -> bool:
    """Take what has come. Returns whether that was the end."""
    data = asked.connection.recv(1 << 16)
    tokens = data.count(b'"text": "')
    if tokens:
        asked.at += [time.monotonic()] * tokens
    assert data, "the server closed the connection"
    return data.endswith(b"0\r\n\r\n")


def _measure(port: int, workload: Workload) -> list[_Asked]:
    """Send a workload's requests, after a few that use everything for the first time."""
    columns = zip(workload.at.tolist(), workload.prompt.tolist(), workload.output.tolist(), strict=True)
    asked = [_asked(port, number, *each) for number, each in enumerate(columns)]
    _send([_asked(port, len(asked) + place, 0.0, 16, 4) for place in range(4)])
    gc.disable()
    _send(asked)
    gc.enable()
    for each in asked:
        each.connection.close()
    return asked


def _figures(asked: list[_Asked]) -> dict[str, float]:
    first = np.array([each.at[0] - each.sent for each in asked])
    tokens = np.array([each.tokens for each in asked])
    between = np.array([(each.at[-1] - each.at[0]) / max(1, each.tokens - 1) for each in asked])[tokens > 1]
    whole = max(each.at[-1] for each in asked) - min(each.sent for each in asked)
    return {
        "TTFT mean": float(first.mean()),
        "TTFT p50": float(np.percentile(first, 50)),
        "TPOT mean": float(between.mean()),
        "tokens/s": float(tokens.sum()) / whole,
    }


def _simulated(setup: FleetSetup, workload: Workload, asked: list[_Asked]) -> dict[str, float]:
    """The same figures of a simulation of the requests as they were sent."""
    sent = np.array([each.sent for each in asked])
    summary = simulate(setup, replace(workload, at=sent - sent.min())).summary
    assert summary.ttft.mean and summary.ttft.p50 and summary.tpot.mean
    return {
        "TTFT mean": summary.ttft.mean,
        "TTFT p50": summary.ttft.p50,
        "TPOT mean": summary.tpot.mean,
        "tokens/s": summary.throughput.output_tokens_per_s,
    }


def main(repeats: int, only: str) -> None:
    """Print medians over runs of the measured figures, of the simulated ones, and of how far apart they are."""
    table = Table("requests", "figure", "measured", "simulated", "difference", "in single runs", box=None)
    for name, content in ((name, _scenario(workload)) for name, workload in _CASES.items() if only in name):
        setup = set_up(scenario_from_dict(content))
        workload = draw_workload(setup)
        measured, simulated = [], []
        for _ in range(repeats):
            with _server(content) as port:
                asked = _measure(port, workload)
            measured.append(_figures(asked))
            simulated.append(_simulated(setup, workload, asked))
        for figure in simulated[0]:
            found, expected = (np.array([run[figure] for run in runs]) for runs in (measured, simulated))
            apart = found / expected - 1
            middles = (f"{np.median(found):.5g}", f"{np.median(expected):.5g}", f"{np.median(apart):+.1%}")
            table.add_row(name, figure, *middles, " ".join(f"{one:+.1%}" for one in apart))
    Console(width=120).print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.emulate")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    given = parser.parse_args()
    main(given.repeats, given.only)
