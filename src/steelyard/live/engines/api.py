"""What every engine can be asked, whatever its kind.

A call that cannot be carried out raises `EngineError`, also if the engine takes too long. No call waits for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

PauseMode = Literal["keep", "wait", "abort"]
"""What becomes of requests in flight: they are frozen until `resume`, finish first, or end with what they have."""


class EngineError(Exception):
    """An engine did not do what it was asked to. ``what`` was asked, and ``why`` says how it failed."""

    def __init__(self, engine: str, what: str, why: str) -> None:
        super().__init__(engine, what, why)
        self.engine, self.what, self.why = engine, what, why

    def __str__(self) -> str:
        return f"{self.engine}: {self.what}: {self.why}"


@dataclass(frozen=True)
class EngineLoad:
    """How busy an engine is. None stands for what it does not tell."""

    running: float | None = None  # requests in the batch
    waiting: float | None = None  # requests that wait for a place in it
    kv_use: float | None = None  # share of the KV cache, 0 to 1
    generated: float | None = None  # output tokens since it started


@dataclass(frozen=True)
class ModelInfo:
    """The model an engine serves."""

    name: str
    max_model_len: int | None = None  # tokens of prompt and output


@dataclass(frozen=True)
class WeightUpdate:
    """New weights: their version, and where they lie.

    ``transfer`` is for weights that a trainer sends over the network instead: what the engine's transfer backend needs
    to know to receive them.
    """

    version: str
    path: str
    transfer: Mapping[str, object] | None = None


class EngineApi(Protocol):
    """One engine."""

    @property
    def url(self) -> str:
        """Its address, which is also its name in messages."""

    @property
    def scores_paused(self) -> bool:
        """Whether `logprobs` works while the engine is paused. vLLM and SGLang hold all new requests then."""

    async def health(self) -> bool:
        """Whether it is alive. Never raises."""

    async def ready(self) -> bool:
        """Whether it would answer a request now: alive, with a model, neither paused nor asleep as far as it tells."""

    async def load(self) -> EngineLoad:
        """How busy it is."""

    async def model(self) -> ModelInfo:
        """What it serves."""

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating. Requests that come from now on wait until `resume`."""

    async def resume(self) -> None:
        """Go on. Does nothing if it is not paused."""

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """End requests with what they have, all of them if no list is given."""

    async def sleep(self, level: int) -> None:
        """Free GPU memory. Requests in flight end. Level 1 keeps the weights, level 2 loses them."""

    async def wake(self) -> None:
        """Take the memory back and go on. After level 2 the weights are garbage until they are updated."""

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load other weights."""

    async def weight_version(self) -> str | None:
        """The version it says it has; None if it does not tell."""

    async def reset_prefix_cache(self) -> None:
        """Forget all cached KV, also that of requests in flight, which is computed again."""

    async def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """The log-probability of each token but the first, given those before it."""

    async def close(self) -> None:
        """Close its connections."""
