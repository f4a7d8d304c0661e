"""SGLang's HTTP interface.

It differs from vLLM's in four ways that matter here. Its health check generates a token, so that a paused engine fails
it. Its cache can be flushed only while it holds no request, not even a frozen one. It cannot wait for requests to
finish. And its memory must be given back with the same tags that it was released with.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, FiniteFloat, RootModel

from steelyard.live.engines.api import EngineLoad, ModelInfo, PauseMode, WeightUpdate
from steelyard.live.engines.http import Call, CallLimits, EngineHttp
from steelyard.live.engines.models import metrics_load, served_model

_MODES: dict[PauseMode, str] = {"keep": "retract", "abort": "abort"}
_TAGS = {1: ["kv_cache"], 2: ["kv_cache", "weights"]}  # by level of sleep


class _Told(BaseModel):
    status: str


class _Updated(BaseModel):
    success: bool
    message: str = ""


class _ServedInfo(BaseModel):
    weight_version: str | None = None


class _RankLoad(BaseModel):
    num_reqs: float
    num_waiting_reqs: float


class _RankLoads(RootModel[list[_RankLoad]]):
    """Loads of all data-parallel ranks."""


class _MetaInfo(BaseModel):
    input_token_logprobs: list[tuple[FiniteFloat | None, int, object]]


class _Generated(BaseModel):
    meta_info: _MetaInfo


class SglangEngine:
    """An SGLang server."""

    scores_paused = False

    def __init__(self, url: str, key: str = "", limits: CallLimits | None = None) -> None:
        self._http = EngineHttp(url, key, limits)
        self._limits = self._http.limits
        self.url = self._http.url
        self._paused = False  # by this client
        self._released: list[str] = []  # tags of memory that this client released

    async def health(self) -> bool:
        """Whether it generates a token; while this client has it paused, whether its scheduler answers."""
        return await self._http.answers("/server_info" if self._paused else "/health_generate")

    async def ready(self) -> bool:
        return not self._paused and await self.health() and await self._http.answers("/v1/models")

    async def load(self) -> EngineLoad:
        """From its metrics, or from a call that tells less if it was started without them."""
        found = await metrics_load(self._http)
        if found is not None:
            return found
        ranks = (await self._http.read(_RankLoads, Call("GET", "/get_load", self._limits.look))).root
        waiting = sum(rank.num_waiting_reqs for rank in ranks)
        return EngineLoad(sum(rank.num_reqs for rank in ranks) - waiting, waiting)

    async def model(self) -> ModelInfo:
        """What it serves. After an update of weights its name is their path."""
        return await served_model(self._http)

    async def pause(self, mode: PauseMode) -> None:
        call = Call("POST", "/pause_generation", self._limits.order, body={"mode": _MODES.get(mode, mode)})
        if mode not in _MODES:
            raise self._http.failure(call, f"SGLang has no mode {mode}; use keep or abort")
        self._paused = True  # also if the answer is lost
        await self._expect_ok(call)

    async def resume(self) -> None:
        await self._expect_ok(Call("POST", "/continue_generation", self._limits.order, body={}))
        self._paused = False

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        bodies: list[dict[str, object]] = [{"abort_all": True}]
        if request_ids is not None:
            bodies = [{"rid": each} for each in request_ids if each]  # an empty one would match every request
        for body in bodies:
            await self._http.done(Call("POST", "/abort_request", self._limits.order, body=body))

    async def sleep(self, level: int) -> None:
        """Free memory. It must hold no request then, or its scheduler fails. Level 1 frees the KV cache alone."""
        call = Call("POST", "/release_memory_occupation", self._limits.weights, body={"tags": _TAGS.get(level, [])})
        if level not in _TAGS:
            raise self._http.failure(call, f"no level {level}; use 1 or 2")
        await self.pause("abort")
        await self._http.done(call)
        self._released = _TAGS[level]

    async def wake(self) -> None:
        if not self._released:
            raise self._http.failure("wake", "it was not put to sleep from here; start it again")
        body = {"tags": self._released}
        await self._http.done(Call("POST", "/resume_memory_occupation", self._limits.weights, body=body))
        self._released = []
        await self.resume()

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load a checkpoint. The cache is flushed by a call of its own: here a failure would end the scheduler."""
        if update.transfer is not None:
            raise self._http.failure("update weights", "weights by transfer are not supported with SGLang; give a path")
        body = {"model_path": update.path, "weight_version": update.version, "flush_cache": False}
        call = Call("POST", "/update_weights_from_disk", self._limits.weights, body=body)
        said = await self._http.read(_Updated, call)
        if not said.success:
            raise self._http.failure(call, said.message or "no reason given")

    async def weight_version(self) -> str | None:
        for path in ("/model_info", "/get_model_info"):  # newer and older versions
            call = Call("GET", path, self._limits.look)
            reply = await self._http.ask(call)
            if reply.status == 200:
                return self._http.parsed(_ServedInfo, call, reply).weight_version
            if reply.status != 404:
                raise self._http.refusal(call, reply)
        return None

    async def reset_prefix_cache(self) -> None:
        """Forget all KV. Fails while requests are frozen: pause with abort before an update."""
        await self._http.done(Call("POST", "/flush_cache", self._limits.order))

    async def logprobs(self, tokens: Sequence[int]) -> list[float]:
        body = {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        call = Call("POST", "/generate", self._limits.score, body=body)
        scores = (await self._http.read(_Generated, call)).meta_info.input_token_logprobs
        if [token for _, token, _ in scores] != list(tokens):
            raise self._http.failure(call, f"no log-probs of these {len(tokens)} tokens")
        found = [logprob for logprob, _, _ in scores[1:] if logprob is not None]
        if len(found) != len(tokens) - 1:
            raise self._http.failure(call, "some tokens have no log-prob")
        return found

    async def close(self) -> None:
        await self._http.close()

    async def _expect_ok(self, call: Call) -> None:
        said = (await self._http.read(_Told, call)).status
        if said != "ok":
            raise self._http.failure(call, f"status {said!r} instead of 'ok'")
