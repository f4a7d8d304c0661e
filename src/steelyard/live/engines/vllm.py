"""vLLM's HTTP interface, as started with VLLM_SERVER_DEV_MODE=1. Emulated engines have it too.

Without that setting an engine has none of the calls for operators, and they fail with HTTP 404.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, FiniteFloat

from steelyard.live.engines.api import EngineLoad, ModelInfo, PauseMode, WeightUpdate
from steelyard.live.engines.http import Call, CallLimits, EngineHttp
from steelyard.live.engines.models import metrics_load, served_model

_NOT_TOLD = "default"  # vLLM's version of weights until it is told another


class _Status(BaseModel):
    status: str


class _Sleeping(BaseModel):
    is_sleeping: bool


class _Paused(BaseModel):
    is_paused: bool


class _Results(BaseModel):
    results: list[object]


class _Reset(BaseModel):
    success: bool


class _WeightInfo(BaseModel):
    weight_version: str


class _NewVersion(BaseModel):
    success: bool
    new_version: str


class _TokenLogprob(BaseModel):
    logprob: FiniteFloat


class _Scored(BaseModel):
    prompt_logprobs: list[dict[int, _TokenLogprob] | None]


class _Completion(BaseModel):
    choices: list[_Scored]


class VllmEngine:
    """A vLLM server. ``scores_paused`` is for engines of the same interface that answer `logprobs` while paused."""

    def __init__(
        self, url: str, key: str = "", limits: CallLimits | None = None, *, scores_paused: bool = False
    ) -> None:
        self._http = EngineHttp(url, key, limits)
        self._limits = self._http.limits
        self.url = self._http.url
        self.scores_paused = scores_paused

    async def health(self) -> bool:
        """Whether its engine process is alive. A process that hangs is not noticed by this call."""
        return await self._http.answers("/health")

    async def ready(self) -> bool:
        """Whether it would answer a request now."""
        if not await self.health() or not await self._http.answers("/v1/models"):
            return False
        sleeping = Call("GET", "/is_sleeping", self._limits.look)
        paused = Call("GET", "/is_paused", self._limits.look)
        replies = [(call, await self._http.ask(call)) for call in (sleeping, paused)]
        if any(reply.status == 404 for _, reply in replies):  # it has no calls for operators
            return True
        asleep = self._http.parsed(_Sleeping, *replies[0]).is_sleeping
        return not asleep and not self._http.parsed(_Paused, *replies[1]).is_paused

    async def load(self) -> EngineLoad:
        return await metrics_load(self._http) or EngineLoad()

    async def model(self) -> ModelInfo:
        return await served_model(self._http)

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating. The cache stays: by default vLLM would drop it here, before the weights change."""
        seconds = self._limits.drain if mode == "wait" else self._limits.order
        call = Call("POST", "/pause", seconds, {"mode": mode, "clear_cache": "false"})
        await self._expect(call, "paused")

    async def resume(self) -> None:
        await self._expect(Call("POST", "/resume", self._limits.order), "resumed")

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """End requests. Ids are those vLLM makes of a client's: `cmpl-ID-0`, `chatcmpl-ID`."""
        if request_ids is not None and not request_ids:
            return  # vLLM takes an empty list for all requests
        body = {} if request_ids is None else {"request_ids": list(request_ids)}
        await self._expect(Call("POST", "/abort_requests", self._limits.order, body=body), "aborted")

    async def sleep(self, level: int) -> None:
        await self._http.done(Call("POST", "/sleep", self._limits.weights, {"level": str(level)}))

    async def wake(self) -> None:
        await self._http.done(Call("POST", "/wake_up", self._limits.weights))

    async def update_weights(self, update: WeightUpdate) -> None:
        """Have every worker load a checkpoint, or receive what the trainer sends."""
        if update.transfer is not None:
            await self._transfer(update.version, update.transfer)
            return
        body = {"method": "reload_weights", "kwargs": {"weights_path": update.path}}
        await self._http.read(_Results, Call("POST", "/collective_rpc", self._limits.weights, body=body))
        await self._name_version(update.version)

    async def init_weight_transfer(self, init_info: Mapping[str, object]) -> None:
        """Join the trainer's transfer group, once before the first update with ``transfer``."""
        body = {"init_info": dict(init_info)}
        await self._http.done(Call("POST", "/init_weight_transfer_engine", self._limits.weights, body=body))

    async def weight_version(self) -> str | None:
        """What it was told last. It is a label: only log-probs tell which weights it has. Until it is told one it has
        the weights that it was started with, which are version 0 of a run."""
        call = Call("GET", "/weight_info", self._limits.look)
        reply = await self._http.ask(call)
        if reply.status == 404:  # an older version
            return None
        if reply.status != 200:
            raise self._http.refusal(call, reply)
        told = self._http.parsed(_WeightInfo, call, reply).weight_version
        return "0" if told == _NOT_TOLD else told

    async def reset_prefix_cache(self) -> None:
        """Forget all KV. Without `reset_running_requests` vLLM refuses while requests are frozen."""
        call = Call("POST", "/reset_prefix_cache", self._limits.order, {"reset_running_requests": "true"})
        reply = await self._http.done(call)
        if reply.body.strip() and not self._http.parsed(_Reset, call, reply).success:  # older versions say nothing
            raise self._http.failure(call, "the cache was not reset")

    async def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """From a completion of one token whose prompt is scored."""
        name = (await self.model()).name
        body = {"model": name, "prompt": list(tokens), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1}
        call = Call("POST", "/v1/completions", self._limits.score, body=body)
        choices = (await self._http.read(_Completion, call)).choices
        if len(choices) != 1 or len(choices[0].prompt_logprobs) != len(tokens):
            raise self._http.failure(call, f"no log-probs of {len(tokens)} tokens")
        found = []
        for token, scores in zip(tokens[1:], choices[0].prompt_logprobs[1:], strict=True):
            if scores is None or token not in scores:
                raise self._http.failure(call, f"no log-prob of token {token}")
            found.append(scores[token].logprob)
        return found

    async def close(self) -> None:
        await self._http.close()

    async def _transfer(self, version: str, info: Mapping[str, object]) -> None:
        seconds = self._limits.weights
        await self._http.done(Call("POST", "/start_weight_update", seconds))
        await self._http.done(Call("POST", "/update_weights", seconds, body={"update_info": dict(info)}))
        await self._http.done(Call("POST", "/finish_weight_update", seconds, body={"weight_version": version}))

    async def _name_version(self, version: str) -> None:
        call = Call("POST", "/update_weight_version", self._limits.order, body={"new_version": version})
        reply = await self._http.ask(call)
        if reply.status == 404:  # an older version, which keeps none
            return
        if reply.status != 200:
            raise self._http.refusal(call, reply)
        if self._http.parsed(_NewVersion, call, reply).new_version != version:
            raise self._http.failure(call, "it took another version")

    async def _expect(self, call: Call, status: str) -> None:
        said = (await self._http.read(_Status, call)).status
        if said != status:
            raise self._http.failure(call, f"status {said!r} instead of {status!r}")


class EmulatedVllm(VllmEngine):
    """An emulated engine. It loads no files: weights come by vLLM's transfer calls, and only their version counts."""

    async def update_weights(self, update: WeightUpdate) -> None:
        await self._transfer(update.version, update.transfer or {})


class TinyVllm(VllmEngine):
    """The small engine. It loads a folder by one call, and has no workers to be called one by one."""

    async def update_weights(self, update: WeightUpdate) -> None:
        body = {"update_info": {"path": update.path, "weight_version": update.version}}
        await self._http.done(Call("POST", "/update_weights", self._limits.weights, body=body))
