"""The client of an engine, by its kind."""

from __future__ import annotations

from typing import Literal

from steelyard.live.engines.api import EngineApi
from steelyard.live.engines.generic import GenericEngine
from steelyard.live.engines.http import CallLimits
from steelyard.live.engines.sglang import SglangEngine
from steelyard.live.engines.vllm import EmulatedVllm, TinyVllm, VllmEngine

EngineKind = Literal["vllm", "sglang", "emulated", "tiny", "generic"]


def connect(kind: EngineKind, url: str, key: str = "", limits: CallLimits | None = None) -> EngineApi:
    """A client of an engine. Nothing is sent yet."""
    match kind:
        case "sglang":
            return SglangEngine(url, key, limits)
        case "emulated":
            return EmulatedVllm(url, key, limits)
        case "generic":
            return GenericEngine(url, key, limits)
        case "tiny":
            return TinyVllm(url, key, limits)
        case "vllm":
            return VllmEngine(url, key, limits)
