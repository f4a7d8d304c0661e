"""GRPO on vLLM engines: how they are started, and the log of a run on an H200 (vLLM 0.26.0, torch 2.11)."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.files.jsontext import json_lines
from steelyard.live.engines.api import EngineError
from steelyard.live.engines.commands import EngineCommand
from steelyard.live.engines.probe import BFLOAT16, FLOAT32
from steelyard.live.grpo import engines
from steelyard.live.grpo.run import GrpoRun
from steelyard.scenario.live import GrpoScenario, load_grpo

H200 = Path(__file__).parent / "data" / "grpo-h200.jsonl.gz"
H200_POOL = H200.with_name("grpo-h200-pool.jsonl.gz")
EXAMPLES = Path(__file__).parents[2] / "examples" / "live"
STEPS, BATCH = 3, 128


def test_the_log_of_a_run_on_an_h200_is_decided_again_as_it_was() -> None:
    found = CliRunner().invoke(app, ["replay", str(H200)])
    assert found.exit_code == 0, found.output
    assert "identical" in found.output and "1,924 events" in found.output
    rows = [row for _, row in json_lines(H200, torn=False, wanted="a log")]
    trained = [name for row in rows if row.get("kind") == "TrainOn" for name in row["trajectories"]]
    assert len(trained) == len(set(trained)) == STEPS * BATCH
    assert [row["version"] for row in rows if row.get("kind") == "WeightsPublished"] == list(range(STEPS + 1))


def test_a_replica_was_borrowed_and_given_back_on_an_h200() -> None:
    """By `python -m tools.borrow examples/live/grpo-h200.yaml FOLDER steps=12 prompts=8 group=8 pool=thresholds`."""
    found = CliRunner().invoke(app, ["replay", str(H200_POOL)])
    assert found.exit_code == 0, found.output
    assert "identical" in found.output and "3,907 events" in found.output
    rows = [row for _, row in json_lines(H200_POOL, torn=False, wanted="a log")][1:]
    moves = ("Drain", "Drained", "Join", "Activate", "Leave", "Serving")
    assert [row["kind"] for row in rows if row["kind"] in moves] == list(moves)
    lent = [row["kind"] for row in rows if row["kind"] in ("ReplicaUp", "ReplicaDown") and row["replica"] == 0]
    assert lent == ["ReplicaUp", "ReplicaDown", "ReplicaUp"]
    weights = [dict(map(tuple, row["weights"])) for row in rows if row["kind"] == "Reduce"]
    assert any(each.get(1, 0.0) > 0 for each in weights)


def test_vllm_has_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    run = GrpoRun.at_free_ports(load_grpo(EXAMPLES / "grpo-vllm-cpu.yaml"), tmp_path)
    with pytest.raises(UserError, match="vllm is not installed; `pip install vllm`"):
        run.write()
    assert not list(tmp_path.iterdir())


def test_servers_are_started_for_their_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    gpu = engines.vllm_command(load_grpo(EXAMPLES / "grpo-h200.yaml"), tmp_path / "model", 8000)
    text = " ".join(gpu.words)
    assert gpu.words[:4] == (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
    assert "--dtype float32" in text and "--enable-sleep-mode" in text and "--kv-cache-memory-bytes 1073741824" in text
    assert gpu.environment["VLLM_SERVER_DEV_MODE"] == "1" and gpu.environment["TRITON_F32_DEFAULT"] == "ieee"
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/vllm")
    cpu = engines.vllm_command(load_grpo(EXAMPLES / "grpo-vllm-cpu.yaml", ["dtype=bfloat16"]), tmp_path, 8000)
    assert cpu.words[:2] == ("/bin/vllm", "serve") and "bfloat16" in cpu.words
    assert "--enable-sleep-mode" not in cpu.words


@pytest.mark.parametrize(
    ("engine", "device", "dtype", "tied", "allowed"),
    [
        ("small", "cpu", "float32", True, FLOAT32),
        ("vllm", "cpu", "float32", False, FLOAT32),
        ("vllm", "cuda", "bfloat16", True, BFLOAT16),
    ],
)
def test_what_depends_on_the_engine(engine: str, device: str, dtype: str, tied: bool, allowed: object) -> None:
    asked = {"name": "small", "task": "calculator", "engine": engine, "device": device, "dtype": dtype}
    scenario = GrpoScenario.model_validate(asked)
    assert engines.ties_embeddings(scenario) is tied
    assert engines.tolerance(scenario) == allowed
    assert engines.engine_speed(scenario).decode[0][0] == 1


def test_a_server_that_ends_takes_its_part_with_it(tmp_path: Path) -> None:
    command = EngineCommand((sys.executable, "-c", "print('no memory left'); raise SystemExit(3)"))
    part = engines.VllmEnginePart(command, 1, tmp_path / "server.log")

    async def main() -> None:
        async with asyncio.timeout(60):
            await part.run(asyncio.Event())

    with pytest.raises(EngineError, match=r"(?s)ended with exit code 3.*no memory left"):
        asyncio.run(main())


def test_a_part_ends_its_server(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    part = engines.VllmEnginePart(EngineCommand((sys.executable, "-c", script)), 1, log)

    async def main() -> int:
        stop = asyncio.Event()
        async with asyncio.timeout(60):
            running = asyncio.ensure_future(part.run(stop))
            while not (log.exists() and log.read_text().strip()):
                await asyncio.sleep(0.02)
            stop.set()
            await running
        return int(log.read_text())

    pid = asyncio.run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
