"""Any engine with OpenAI's interface. What that interface does not have, it cannot do, and says so."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, FiniteFloat

from steelyard.live.engines.api import EngineError, EngineLoad, ModelInfo, PauseMode, WeightUpdate
from steelyard.live.engines.http import Call, CallLimits, EngineHttp
from steelyard.live.engines.models import metrics_load, served_model


class _Logprobs(BaseModel):
    token_logprobs: list[FiniteFloat | None]


class _Echoed(BaseModel):
    logprobs: _Logprobs


class _Completion(BaseModel):
    choices: list[_Echoed]


class GenericEngine:
    """A server of which no more is known than that it speaks OpenAI's interface."""

    scores_paused = False  # it cannot be paused

    def __init__(self, url: str, key: str = "", limits: CallLimits | None = None) -> None:
        self._http = EngineHttp(url, key, limits)
        self.url = self._http.url

    async def health(self) -> bool:
        return await self._http.answers("/v1/models")

    async def ready(self) -> bool:
        return await self.health()

    async def load(self) -> EngineLoad:
        return await metrics_load(self._http) or EngineLoad()

    async def model(self) -> ModelInfo:
        return await served_model(self._http)

    async def pause(self, mode: PauseMode) -> None:
        raise self._cannot("pause")

    async def resume(self) -> None:
        raise self._cannot("resume")

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        raise self._cannot("abort requests; close their connections instead")

    async def sleep(self, level: int) -> None:
        raise self._cannot("sleep")

    async def wake(self) -> None:
        raise self._cannot("wake")

    async def update_weights(self, update: WeightUpdate) -> None:
        raise self._cannot("load other weights; start it again with them")

    async def weight_version(self) -> str | None:
        return None

    async def reset_prefix_cache(self) -> None:
        raise self._cannot("reset its prefix cache")

    async def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """From a completion of one token that echoes its prompt, as OpenAI's first models did."""
        name = (await self.model()).name
        body = {"model": name, "prompt": list(tokens), "max_tokens": 1, "echo": True, "logprobs": 1}
        call = Call("POST", "/v1/completions", self._http.limits.score, body=body)
        choices = (await self._http.read(_Completion, call)).choices
        if len(choices) != 1:
            raise self._http.failure(call, f"{len(choices)} choices instead of one")
        scores = [each for each in choices[0].logprobs.token_logprobs[1 : len(tokens)] if each is not None]
        if len(scores) != len(tokens) - 1:
            raise self._http.failure(call, f"no log-probs of {len(tokens)} tokens")
        return scores

    async def close(self) -> None:
        await self._http.close()

    def _cannot(self, what: str) -> EngineError:
        return self._http.failure(what.partition(";")[0], f"an engine of unknown kind cannot {what}")
