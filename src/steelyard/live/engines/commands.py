"""Command lines that start engines, made from what is wanted of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class EngineCommand:
    """What to run, and what to add to its environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class VllmServer:
    """A vLLM server. ``options`` are more of its own, as they are."""

    model: str  # a name or a folder
    tp: int = 1
    name: str = ""  # that clients use; the model's own by default
    max_model_len: int | None = None
    gpus: tuple[int, ...] = ()  # all by default
    options: tuple[str, ...] = ()
    program: tuple[str, ...] = ("vllm",)  # what starts it

    def command(self, host: str, port: int) -> EngineCommand:
        words = [*self.program, "serve", self.model, "--host", host, "--port", str(port)]
        words += ["--tensor-parallel-size", str(self.tp)]
        words += ["--served-model-name", self.name] if self.name else []
        words += ["--max-model-len", str(self.max_model_len)] if self.max_model_len is not None else []
        return EngineCommand((*words, *self.options), {"VLLM_SERVER_DEV_MODE": "1", **_devices(self.gpus)})


@dataclass(frozen=True)
class SglangServer:
    """An SGLang server, with metrics. ``sleeps`` allows it to release memory."""

    model: str
    tp: int = 1
    name: str = ""
    max_model_len: int | None = None
    gpus: tuple[int, ...] = ()
    sleeps: bool = False
    options: tuple[str, ...] = ()

    def command(self, host: str, port: int) -> EngineCommand:
        words = [sys.executable, "-m", "sglang.launch_server", "--model-path", self.model, "--host", host]
        words += ["--port", str(port), "--tp-size", str(self.tp), "--enable-metrics"]
        words += ["--served-model-name", self.name] if self.name else []
        words += ["--context-length", str(self.max_model_len)] if self.max_model_len is not None else []
        words += ["--enable-memory-saver"] if self.sleeps else []
        return EngineCommand((*words, *self.options), _devices(self.gpus))


@dataclass(frozen=True)
class EmulatedServer:
    """One emulated engine of a scenario's fleet."""

    scenario: Path
    speed: float = 1.0
    name: str = ""
    options: tuple[str, ...] = ()

    def command(self, host: str, port: int) -> EngineCommand:
        words = [sys.executable, "-m", "steelyard", "emulate", str(self.scenario), "--host", host, "--port", str(port)]
        words += ["--speed", f"{self.speed:g}", "--set", "fleet.replicas=1"]
        words += ["--name", self.name] if self.name else []
        return EngineCommand((*words, *self.options))


@dataclass(frozen=True)
class TinyServer:
    """The small engine that runs on a CPU."""

    model: Path
    options: tuple[str, ...] = ()

    def command(self, host: str, port: int) -> EngineCommand:
        """It listens at this machine's own address only, whatever ``host`` says."""
        words = (sys.executable, "-m", "steelyard.live.tiny", str(self.model), "--port", str(port))
        return EngineCommand((*words, *self.options))


def _devices(gpus: tuple[int, ...]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}
