"""`python -m bench.gateway`: what the gateway adds to the time to first token, beside direct access in the same run.

Engines (emulated), the gateway, the controller and the client are processes of their own on this machine. Requests go
directly and through the gateway in turn, while others are under way:

- a serving fleet: none, then 200 streams of 20 tokens a second;
- trajectories: 1,000 turns of a controller's run at once, and 200 streams, which are turns, too.

Given ``fleet`` or ``trajectories``, it measures only those.

What is added to the time to first token is not only the way through the gateway: an engine begins a step every 50 ms,
and a request that comes a little later may have to wait for the next one. So of turns the way itself is measured, too,
and what it adds to a first token if requests of both ways wait alike.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from bench.gateway_added import Probe, added, added_at_same_waits, leg_rows, legs, waits_of
from bench.gateway_engine import Notes, Stay
from steelyard.live.emulated.run import EmulatedRun
from steelyard.scenario import posttrain_from_dict

_SCENARIO: dict[str, Any] = {
    "name": "behind",
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "h200", "replicas": 2},
    "engine": {"max_num_seqs": 1024},
    "workload": {"arrivals": {"kind": "burst"}, "requests": 1, "prompt": 64, "output": 64},
}
_SPEED = 0.22  # with 100 streams an engine of this kind makes some 90 tokens a second each: 20 at this speed
_RUN: dict[str, Any] = {
    "name": "behind",
    "model": "llama-3.1-8b",
    "gpu": "h200",
    "trajectories": {"preset": "search", "prompts": 2, "group": 4},
    "mode": "asynchronous",
    "rollout": [{"tp": 1, "replicas": 2}],
    "training": {"tp": 2, "dp": 1},
    "engine": {"max_num_seqs": 1024},
    "steps": 1,
}
_RUN_SPEED = 0.75  # a step of 600 turns, with their contexts, takes about 45 ms on an H200
_WARM_SECONDS, _SECONDS = 8.0, 60.0
_PAUSE_SECONDS = 0.2  # at most, before a probe: several steps, so that it comes at any moment of one
_PROBES = 2_000  # each way: steps are so long that medians of fewer differ by chance
_AT_ONCE = 16
_TURNS, _STREAMS = 1_000, 200
_TURN_TOKENS, _RETURNED = 256, 64
_TURNS_EACH = 4  # so few that engines have room for all contexts: else turns wait for that, and not for the gateway


@dataclass
class Found:
    """What was measured each way, and what else happened meanwhile."""

    first: dict[str, list[Probe]] = field(default_factory=dict)
    turns: int = 0
    chunks: int = 0  # parts of streams
    gateway_cpu: float = 0.0  # seconds
    other_cpu: float = 0.0  # seconds of all that is not part of this
    seconds: float = 0.0


@asynccontextmanager
async def asked(port: int, path: str, body: Mapping[str, Any], *heads: str) -> AsyncIterator[asyncio.StreamReader]:
    """The answer to a request, whose connection ends with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = orjson.dumps(body)
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(data)}", *heads]
    writer.write("\r\n".join([*lines, "", ""]).encode() + data)
    try:
        yield reader
    finally:
        writer.close()


async def _stream(port: int, tokens: int, found: Found | None = None, *heads: str) -> tuple[float, float]:
    """Stream a completion to its end; when it was asked for, and when its first token was there."""
    body = {"prompt": list(range(64)), "max_tokens": tokens, "ignore_eos": True, "stream": True}
    begun, first = time.monotonic(), 0.0
    async with asked(port, "/v1/completions", body, *heads) as reader:
        while data := await reader.read(1 << 16):
            if b'"text"' in data:
                first = first or time.monotonic()
                if found is not None:
                    found.chunks += data.count(b'"text"')
    return begun, first


def session_head(name: str) -> str:
    """The header of a turn."""
    return f"X-Session-ID: {name}"


async def whole_answer(port: int, path: str, body: Mapping[str, Any], *heads: str) -> dict[str, Any]:
    """A whole answer, which must be 200."""
    async with asked(port, path, body, *heads) as reader:
        head, _, answer = (await reader.read(-1)).partition(b"\r\n\r\n")
    if b" 200 " not in head[:20]:
        raise RuntimeError(f"{path}: {head[:100]!r} {answer[:200]!r}")
    return dict(orjson.loads(answer))


async def _play(port: int, name: str, random: Random, found: Found) -> None:
    """Play trajectories one after the other, turn by turn. The first turn is short, so that not all end at once."""
    for trajectory in count():
        session, context = f"{name}.{trajectory}", list(range(64))
        for turn in range(_TURNS_EACH):
            tokens = random.randint(1, _TURN_TOKENS) if trajectory == turn == 0 else _TURN_TOKENS
            body = {"prompt": context, "max_tokens": tokens, "ignore_eos": True}
            answer = await whole_answer(port, "/v1/completions", body, session_head(session))
            found.turns += 1
            context += answer["choices"][0]["token_ids"] + list(range(_RETURNED))
        await whole_answer(port, f"/v1/trajectories/{session}/end", {})


async def _probe(engines: list[int], gateway: int, notes: Notes | None) -> dict[str, list[Probe]]:
    """Ask through the gateway and directly in turn, several at once. With notes of engines these are turns, and the
    engine that had one is asked directly next. One engine may be twice as fast as the other for a while.

    Each waits for a random while first. Else it would always be sent when a step has just ended.
    """
    found: dict[str, list[Probe]] = {"direct": [], "gateway": []}
    ends, random, turns = time.monotonic() + _SECONDS, Random(2), count()

    async def through(name: str) -> Probe:
        await asyncio.sleep(random.random() * _PAUSE_SECONDS)
        probe = Probe(name, *await _stream(gateway, 1, None, *([] if notes is None else [session_head(name)])))
        if notes is None:
            return probe
        await whole_answer(gateway, f"/v1/trajectories/{name}/end", {})
        return probe._replace(stay=await _noted(notes, name))

    async def directly(name: str, engine: int) -> Probe:
        await asyncio.sleep(random.random() * _PAUSE_SECONDS)
        probe = Probe(name, *await _stream(engines[engine], 1, None, f"X-Request-ID: {name}"))
        return probe if notes is None else probe._replace(stay=await _noted(notes, name))

    async def one(number: int) -> None:
        for probe in range(number, _PROBES, _AT_ONCE):
            second = await through(f"probe.{probe}")
            engine = next(turns) % len(engines) if second.stay is None else second.stay.engine
            found["direct"].append(await directly(f"direct.{probe}", engine))
            found["gateway"].append(second)
            if time.monotonic() > ends:
                break

    await asyncio.gather(*(one(number) for number in range(_AT_ONCE)))
    return found


async def _noted(notes: Notes, name: str) -> Stay:
    """What the engine of a request notes, which it does right after its answer."""
    while (found := notes.stay(name)) is None:
        await asyncio.sleep(1e-3)
    return found


async def _probe_apart(engines: list[int], gateway: int, folder: Path | None) -> dict[str, list[Probe]]:
    """The same in a process of its own, which nothing else keeps waiting."""
    ports = [str(port) for port in (gateway, *engines)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.gateway", "probe", str(folder or ""), *ports), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return {way: [_probe_of(*row) for row in rows] for way, rows in orjson.loads(output).items()}


def _probe_of(name: str, begun: float, got: float, stay: list[float] | None) -> Probe:
    return Probe(name, begun, got, None if stay is None else Stay(int(stay[0]), *stay[1:]))


async def _measure(
    engines: list[int], gateway: int, pid: int, streams: int, turns: int = 0, folder: Path | None = None
) -> Found:
    """Times to first token while streams and turns are under way through the gateway. Engines of turns have notes in a
    folder."""
    found, random = Found(), Random(1)
    playing: list[asyncio.Future[Any]] = [
        *(asyncio.ensure_future(_play(gateway, f"turn-{each}", random, found)) for each in range(turns)),
        *(
            asyncio.ensure_future(_stream(gateway, 4096, found, *([session_head(f"stream-{each}")] if turns else [])))
            for each in range(streams)
        ),
    ]
    await asyncio.sleep(_WARM_SECONDS)
    found.turns = found.chunks = 0
    begun, cpu, other = time.monotonic(), cpu_seconds(pid), _other_seconds()
    found.first = await _probe_apart(engines, gateway, folder)
    found.seconds, found.gateway_cpu = time.monotonic() - begun, cpu_seconds(pid) - cpu
    found.other_cpu = _other_seconds() - other
    for task in playing:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.gather(*playing, return_exceptions=True)
    return found


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _other_seconds() -> float:
    """CPU seconds that the machine has used for processes outside this one's group."""
    user, nice, system, _, _, hard, soft = (int(word) for word in Path("/proc/stat").read_text().split()[1:8])
    used, group = user + nice + system + hard + soft, str(os.getpgrp())
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            if fields[2] == group:
                used -= sum(int(word) for word in fields[11:15])  # its own, and of its children that have ended
    return used / os.sysconf("SC_CLK_TCK")


@contextmanager
def _process(*arguments: str) -> Iterator[tuple[int, list[str]]]:
    """A command of ours until the end of the block: its process, and the first lines it printed."""
    command = [sys.executable, "-m", "steelyard", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = 2 if arguments[0] == "emulate" else 1
            yield process.pid, [process.stdout.readline() for _ in range(lines)]
        finally:
            process.terminate()


@contextmanager
def _part(folder: Path, name: str) -> Iterator[int]:
    """A part of a run until the end of the block: its process."""
    kind, _, number = name.partition("-")
    command = ["bench.gateway_engine", str(folder), number] if number else ["steelyard.live.process", str(folder), kind]
    with subprocess.Popen([sys.executable, "-m", *command]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _port(line: str) -> int:
    return int(line.split("/v1")[0].rsplit(":", 1)[1])


def _fleet(folder: Path, streams: int) -> Found:
    """Behind a serving fleet."""
    path = folder / "behind.json"
    path.write_text(json.dumps(_SCENARIO), encoding="utf-8")
    with _process("emulate", str(path), "--port", "0", "--speed", str(_SPEED)) as (_, lines):
        engines = [_port(line) for line in lines]
        addresses = [f"http://127.0.0.1:{port}" for port in engines]
        with _process("gateway", *addresses, "--port", "0", "--router", "round-robin") as (pid, (line,)):
            return asyncio.run(_measure(engines, _port(line), pid, streams))


def _trajectories(folder: Path) -> Found:
    """Turns that a controller places, which is a process of its own as all other parts are."""
    run = EmulatedRun.at_free_ports(posttrain_from_dict(_RUN), folder, _RUN_SPEED)
    run.write()
    with ExitStack() as parts:
        names = [name for name in run.parts if name not in ("job", "gateway")] + ["gateway"]  # which ends first
        pids = {name: parts.enter_context(_part(folder, name)) for name in names}
        asyncio.run(_ready(run.gateway))
        return asyncio.run(_measure(list(run.engines), run.gateway, pids["gateway"], _STREAMS, _TURNS, folder))


async def _ready(gateway: int) -> None:
    """Wait until a turn is answered."""
    for attempt in count():
        with suppress(OSError, RuntimeError):
            await whole_answer(
                gateway, "/v1/completions", {"prompt": [1], "max_tokens": 1}, session_head(f"first.{attempt}")
            )
            return
        await asyncio.sleep(0.2)


def _add_rows(table: Table, what: str, found: Found) -> None:
    p50, p99 = added(found.first["direct"], found.first["gateway"])
    count = str(len(found.first["direct"]))
    table.add_row(what, "direct", f"{p50.direct:.1f}", f"{p99.direct:.1f}", "", "", count)
    row = "gateway", f"{p50.gateway:.1f}", f"{p99.gateway:.1f}", str(p50), str(p99), count
    table.add_row("", *row, *_meanwhile(found))


def _way(found: Found) -> Table:
    """Where the time to first token of turns goes."""
    table = Table("ms, p50 and p99", "direct", "gateway", "adds", box=None)
    direct, gateway = (legs(found.first[way]) for way in ("direct", "gateway"))
    for name, *both in leg_rows(direct, gateway):
        times = (*both, both[1] - both[0])
        table.add_row(name, *(", ".join(f"{value:.1f}" for value in each) for each in times))
    same = added_at_same_waits(direct, gateway)
    one, other = (", ".join(f"{value:.1f}" for value in each) for each in zip(*(row[:2] for row in same), strict=True))
    table.add_row("first token, if waits are those of both", one, other, ", ".join(map(str, same)))
    return table


def _waits(found: Found) -> str:
    """Whether requests waited in engines alike both ways."""
    waits = waits_of(*(legs(found.first[way]) for way in ("direct", "gateway")))
    means = f"{waits.longer:+.1f} ms ({waits.low:+.1f} to {waits.high:+.1f})"
    same = "no difference seen" if waits.alike else "not alike: the last row of the table does not hold"
    ways = f"{waits.correlation_direct:+.2f} directly, {waits.correlation_gateway:+.2f} through the gateway"
    return f"mean wait in the engine, gateway less direct: {means}, {same}; correlation of way and wait: {ways}"


def _meanwhile(found: Found) -> tuple[str, str, str, str]:
    rates = f"{found.turns / found.seconds:.1f}", f"{found.chunks / found.seconds:,.0f}"
    return (
        *rates,
        f"{found.gateway_cpu:.1f} s, {found.gateway_cpu / found.seconds:.0%}",
        f"{found.other_cpu / found.seconds:.0%}",
    )


def main() -> None:
    """Print a table. What else the machine does counts, too, so the CPU time of that is in it (100 % is a core)."""
    wanted = sys.argv[1:] or ["fleet", "trajectories"]
    if wanted[0] == "probe":
        gateway, *engines = (int(word) for word in wanted[2:])
        with closing(Notes(Path(wanted[1]))) if wanted[1] else nullcontext() as notes:
            sys.stdout.write(json.dumps(asyncio.run(_probe(engines, gateway, notes))))
        return
    table = Table(
        *("under way", "way", "p50 ms", "p99 ms", "adds (95 %) at p50", "at p99", "requests", "turns/s", "parts/s"),
        *("CPU of the gateway", "CPU of other work"),
        box=None,
    )
    ways: list[Table | str] = []
    with tempfile.TemporaryDirectory() as folder:
        if "fleet" in wanted:
            for streams in (0, _STREAMS):
                _add_rows(table, f"{streams} streams", _fleet(Path(folder), streams))
        if "trajectories" in wanted:
            found = _trajectories(Path(folder))
            _add_rows(table, f"{_TURNS:,} turns, {_STREAMS} streams", found)
            ways += [_way(found), _waits(found)]
    for each in (table, *ways):
        Console(width=180).print(each)
    Console().print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs", highlight=False)


if __name__ == "__main__":
    main()
