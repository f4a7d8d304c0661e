"""Engines as processes: they start, answer, and leave nothing behind, however they end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from steelyard.errors import UserError
from steelyard.live.engines.api import EngineError
from steelyard.live.engines.commands import EmulatedServer, EngineCommand, SglangServer, TinyServer, VllmServer
from steelyard.live.engines.connect import connect
from steelyard.live.engines.launch import EngineProcess, adopt, free_port
from support.emulated import SCENARIO
from support.paths import ROOT

# Writes its pid and that of a child to a file, and stays. With `stubborn` neither minds being told to end.
ENGINE = """
import os, signal, subprocess, sys, time
kind, path = sys.argv[1:]
if kind == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(path + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(path + ".new", path)
print("serving")
print("caf\\u00e9 \\x1b[31m", flush=True)
if kind == "leaves":
    sys.exit(3)
time.sleep(600)
"""
AGENT = """
import asyncio, sys
from pathlib import Path
from steelyard.live.engines.commands import EngineCommand
from steelyard.live.engines.launch import EngineProcess

async def main():
    words = tuple(sys.argv[2:])
    await EngineProcess.start(EngineCommand(words), "http://127.0.0.1:1", Path(sys.argv[1]), grace=0.2)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def words(kind: str, pids: Path) -> tuple[str, ...]:
    return (sys.executable, "-c", ENGINE, kind, str(pids))


def alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and was not asked for its exit code does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never was so")


async def started(kind: str, folder: Path, grace: float = 5.0) -> tuple[EngineProcess, list[int]]:
    """An engine, and the processes of it."""
    pids = folder / "pids"
    command = EngineCommand(words(kind, pids))
    process = await EngineProcess.start(command, "http://127.0.0.1:1", folder / "log", grace=grace)
    await until(pids.exists)
    return process, [int(each) for each in pids.read_text().split()]


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


def test_an_engine_starts_and_stops_with_all_its_processes(tmp_path: Path) -> None:
    async def run() -> None:
        process, pids = await started("plain", tmp_path)
        await process.wait(yes, 5.0)
        assert process.ended == "" and all(alive(each) for each in pids)
        await process.stop()
        assert process.ended == f"ended by signal {signal.SIGTERM}"
        await until(lambda: not any(alive(each) for each in pids))
        await process.stop()  # again does no harm

    asyncio.run(run())


def test_an_engine_that_does_not_mind_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    async def run() -> None:
        process, pids = await started("stubborn", tmp_path, grace=0.2)
        await process.stop()
        assert process.ended == f"ended by signal {signal.SIGKILL}"
        await until(lambda: not any(alive(each) for each in pids))

    asyncio.run(run())


def test_an_engine_that_ends_takes_what_it_started_with_it(tmp_path: Path) -> None:
    async def run() -> None:
        process, pids = await started("leaves", tmp_path)
        await until(lambda: process.ended != "")
        assert process.ended == "ended with exit code 3"
        await until(lambda: not any(alive(each) for each in pids))

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it takes half a second longer, and no /proc tells")
@pytest.mark.parametrize("kind", ["plain", "stubborn"])
def test_engines_end_with_an_agent_that_is_killed(tmp_path: Path, kind: str) -> None:
    pids = tmp_path / "pids"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path / "log"), *words(kind, pids)], env=environment)
    try:
        asyncio.run(until(pids.exists))
        engine = [int(each) for each in pids.read_text().split()]
        assert all(alive(each) for each in engine)
    finally:
        agent.kill()
        agent.wait()
    asyncio.run(until(lambda: not any(alive(each) for each in engine)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_an_engine_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    async def run() -> None:
        process, pids = await started("stubborn", tmp_path)
        os.kill(process._process.pid, signal.SIGKILL)
        await until(lambda: process.ended != "" and not alive(pids[0]))
        assert process.ended == f"ended by signal {signal.SIGKILL}"
        os.kill(pids[1], signal.SIGKILL)  # nobody was left to end it

    asyncio.run(run())


def test_an_engine_that_ends_at_once_is_told_with_its_last_lines(tmp_path: Path) -> None:
    async def run() -> None:
        script = "import sys; print('\\n'.join(map(str, range(1000)))); sys.exit('out of memory')"
        command = EngineCommand((sys.executable, "-c", script))
        process = await EngineProcess.start(command, "http://127.0.0.1:1", tmp_path / "log")
        with pytest.raises(EngineError) as told:
            await process.wait(no, 20.0)
        assert told.value.why.startswith("ended with exit code 1; ") and told.value.why.endswith("\n999\nout of memory")
        assert len(told.value.why.splitlines()) == 16

    asyncio.run(run())


def test_an_engine_that_is_not_healthy_in_time_is_stopped(tmp_path: Path) -> None:
    async def run() -> None:
        process, pids = await started("plain", tmp_path)
        with pytest.raises(EngineError, match="not healthy after 0 s") as told:
            await process.wait(no, 0.0)
        assert told.value.why.splitlines()[1] == "serving" and told.value.what == "start"
        assert process.ended
        await until(lambda: not any(alive(each) for each in pids))

    asyncio.run(run())


def test_waiting_that_is_cancelled_stops_the_engine(tmp_path: Path) -> None:
    async def run() -> None:
        process, pids = await started("plain", tmp_path)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.wait(no, 60.0), 0.1)
        assert process.ended
        await until(lambda: not any(alive(each) for each in pids))

    asyncio.run(run())


def test_commands_and_folders_that_are_not_there(tmp_path: Path) -> None:
    async def run() -> None:
        missing = EngineCommand(("no-such-engine",))
        process = await EngineProcess.start(missing, "http://127.0.0.1:1", tmp_path / "log")
        with pytest.raises(EngineError, match="exit code 127") as told:
            await process.wait(no, 20.0)
        assert "no-such-engine: No such file" in told.value.why
        with pytest.raises(UserError, match="cannot be started in"):
            await EngineProcess.start(missing, "http://127.0.0.1:1", tmp_path / "log", cwd=tmp_path / "none")
        with pytest.raises(UserError, match="is a folder"):
            await EngineProcess.start(missing, "http://127.0.0.1:1", tmp_path)

    asyncio.run(run())


def test_environment_and_folder_are_the_engines(tmp_path: Path) -> None:
    async def run() -> None:
        script = "import os; print(os.environ['ONE'], 'PATH' in os.environ, os.getcwd())"
        command = EngineCommand((sys.executable, "-c", script), {"ONE": "1"})
        process = await EngineProcess.start(command, "http://127.0.0.1:1", tmp_path / "log", cwd=tmp_path)
        await until(lambda: process.ended != "")
        assert process.last_lines() == [f"1 True {tmp_path.resolve()}"]

    asyncio.run(run())


def test_an_emulated_engine_is_started_asked_and_stopped(tmp_path: Path) -> None:
    async def run() -> None:
        scenario = tmp_path / "scenario.json"
        scenario.write_text(json.dumps(SCENARIO))
        port = free_port()
        url = f"http://127.0.0.1:{port}/v1"
        command = EmulatedServer(scenario, speed=20.0, name="m").command("127.0.0.1", port)
        environment = {**command.environment, "PYTHONPATH": str(ROOT / "src"), "STEELYARD_CACHE": ""}
        process = await EngineProcess.start(EngineCommand(command.words, environment), url, tmp_path / "log")
        api = connect("emulated", process.url)
        try:
            await process.wait(api.health, 120.0)
            assert (await api.model()).name == "m" and await api.ready()
            assert (await api.load()).running == 0
            await api.pause("keep")
            assert not await api.ready()
            await api.resume()
            await api.abort()
            await api.sleep(1)
            assert not await api.ready()
            await api.wake()
            await api.reset_prefix_cache()
            assert await api.ready() and await api.weight_version() == "0"
        finally:
            await process.stop()
            await api.close()
        assert process.ended == "ended with exit code 0"

    asyncio.run(run())


def test_adopted_engines_are_not_stopped() -> None:
    async def run() -> None:
        host = adopt("http://127.0.0.1:8000/v1")
        await host.stop()
        assert host.url == "http://127.0.0.1:8000" and host.ended == ""

    asyncio.run(run())
    with pytest.raises(UserError, match="must be the URL"):
        adopt("127.0.0.1")


def test_command_lines() -> None:
    vllm = VllmServer("m", 2, "name", 4096, (0, 1), ("--seed", "1")).command("127.0.0.1", 8000)
    assert " ".join(vllm.words) == (
        "vllm serve m --host 127.0.0.1 --port 8000 --tensor-parallel-size 2 --served-model-name name "
        "--max-model-len 4096 --seed 1"
    )
    assert vllm.environment == {"VLLM_SERVER_DEV_MODE": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    sglang = SglangServer("m", 2, "name", 4096, (3,), True, ("--x",)).command("127.0.0.1", 8000)
    assert " ".join(sglang.words[1:]) == (
        "-m sglang.launch_server --model-path m --host 127.0.0.1 --port 8000 --tp-size 2 --enable-metrics "
        "--served-model-name name --context-length 4096 --enable-memory-saver --x"
    )
    assert sglang.environment == {"CUDA_VISIBLE_DEVICES": "3"}
    plain = VllmServer("m").command("h", 1).words
    assert " ".join(plain) == "vllm serve m --host h --port 1 --tensor-parallel-size 1"
    assert SglangServer("m").command("h", 1).environment == {}
    tiny = TinyServer(Path("model"), ("--x",)).command("127.0.0.1", 8000)
    assert tiny.words[1:] == ("-m", "steelyard.live.tiny", "model", "--port", "8000", "--x")


def test_free_ports_are_free() -> None:
    assert 0 < free_port() != free_port()
