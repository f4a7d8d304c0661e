"""New weights for emulated engines, which are only a version, and the check that an engine answers with them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, FiniteFloat

from steelyard.emulate.openai import logprob_of
from steelyard.live.engines.api import WeightUpdate
from steelyard.live.engines.http import Call
from steelyard.live.engines.probe import FLOAT32, WeightProbe
from steelyard.live.engines.vllm import EmulatedVllm
from steelyard.live.engines.weights import update_engine
from steelyard.live.keeper import KeptEngine

_PROBED = tuple(range(2, 18))  # tokens; whichever


class _Scores(BaseModel):
    logprobs: list[FiniteFloat]


class ScoredAtOnce(EmulatedVllm):
    """An emulated engine whose log-probs take none of its time, since the simulation has no probes either."""

    def __init__(self, url: str, key: str = "") -> None:
        super().__init__(url, key, scores_paused=True)

    async def logprobs(self, tokens: Sequence[int]) -> list[float]:
        call = Call("POST", "/emulate/logprobs", self._limits.order, body={"tokens": list(tokens)})
        return list((await self._http.read(_Scores, call)).logprobs)


def probe_of(version: str) -> WeightProbe:
    """What a trainer of emulated weights would compute."""
    logprob = logprob_of(version)
    return WeightProbe(_PROBED, tuple(logprob(place, token) for place, token in enumerate(_PROBED))[1:])


async def update_emulated(engine: KeptEngine, update: WeightUpdate) -> str:
    """Give an emulated engine other weights while its requests are frozen, and check them before they go on."""
    return await update_engine(engine.api, update, [probe_of(update.version)], FLOAT32)
