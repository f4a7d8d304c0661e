"""The HTTP interface of an emulated engine: OpenAI's, vLLM's for operators, and one for faults."""

from __future__ import annotations

import asyncio
from array import array
from importlib.metadata import version as version_of
from typing import Annotated, Any, Literal, TypeVar

import orjson
from fastapi import Body as FromBody
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field, ValidationError
from starlette.types import Receive, Scope, Send

from steelyard.emulate.engine import Delivery
from steelyard.emulate.openai import Body, ChatBody, CompletionBody, Message, Rendering, Token, error, logprob_of
from steelyard.emulate.replica import AnswerChoice, EmulatedReplica, Mailbox, PauseMode
from steelyard.emulate.servers import read_at
from steelyard.emulate.text import chat_tokens, tokens_of, word_of

_VERSION = version_of("steelyard")
_JSON = "application/json"
_Read = TypeVar("_Read", bound=BaseModel)


class Fault(BaseModel):
    """POST /emulate/fault: what shall go wrong from now on. ``none`` ends hang, slow and stale."""

    kind: Literal["crash", "hang", "slow", "stale", "none"]
    factor: float = Field(1.0, ge=1.0, le=1000.0, description="How much slower, of `slow`.")


class Scored(BaseModel):
    """POST /emulate/logprobs"""

    tokens: list[int] = Field(min_length=2)


class PromptText(BaseModel):
    """POST /tokenize"""

    prompt: str


class Conversation(BaseModel):
    """POST /tokenize"""

    messages: list[Message]


def make_app(replica: EmulatedReplica) -> FastAPI:
    """The application of one engine."""
    app = FastAPI(title="Steelyard, an emulated engine", version=_VERSION)
    app.add_exception_handler(RequestValidationError, _refuse)
    _add_clients(app, replica)
    _add_watching(app, replica)
    _add_operators(app, replica)
    _add_weights(app, replica)
    _add_faults(app, replica)
    return app


def _refuse(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return JSONResponse(error(f"{where}: {first['msg']}"[:500], "BadRequestError", 400), 400)


def _add_clients(app: FastAPI, replica: EmulatedReplica) -> None:
    @app.post("/v1/completions", openapi_extra=_takes(CompletionBody))
    async def completions(request: Request) -> Response:
        return await _answer(replica, await _body(CompletionBody, request), request)

    @app.post("/v1/chat/completions", openapi_extra=_takes(ChatBody))
    async def chat(request: Request) -> Response:
        return await _answer(replica, await _body(ChatBody, request), request)

    @app.post("/tokenize")
    async def tokenize(given: PromptText | Conversation) -> dict[str, Any]:
        found = tokens_of(given.prompt) if isinstance(given, PromptText) else chat_tokens(given.messages)
        return {"tokens": found.tolist(), "count": len(found), "max_model_len": replica.longest}

    @app.post("/detokenize")
    async def detokenize(tokens: Annotated[list[Token], FromBody(embed=True)]) -> dict[str, str]:
        return {"prompt": "".join(map(word_of, tokens))}


def _takes(kind: type[BaseModel]) -> dict[str, Any]:
    """What a route's description says of its body."""
    return {"requestBody": {"content": {"application/json": {"schema": kind.model_json_schema()}}, "required": True}}


async def _body(kind: type[_Read], request: Request) -> _Read:
    """A request's body. Parsed and checked in one go, since prompts may be lists of many thousand tokens."""
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as problem:
        raise RequestValidationError(problem.errors(include_url=False, include_context=False)) from None


async def _answer(replica: EmulatedReplica, body: Body, request: Request) -> Response:
    if body.model is not None and body.model != replica.name:
        message = f"The model `{body.model}` does not exist; this engine serves `{replica.name}`."
        return JSONResponse(error(message, "NotFoundError", 404), 404)
    prompts = body.prompts()
    problem = _problem(body, prompts, replica.longest)
    if problem:
        return JSONResponse(error(problem, "BadRequestError", 400), 400)
    at = replica.clock.at(read_at(request.scope))
    mailbox = Mailbox()
    choices = [
        replica.submit(
            prompt,
            body.most,
            mailbox,
            at,
            exact=body.ignore_eos or (body.most is not None and body.min_tokens >= body.most),
            each_token=body.stream,
            priority=body.priority,
            cached=body.cached,
            scored=body.scored,
        )
        for prompt in prompts
        for _ in range(body.n)
    ]
    name = request.headers.get("x-request-id", body.request_id)
    rendering = Rendering(body, replica.name, choices, name or f"{choices[0].number:08x}")
    return DeliveredResponse(replica, choices, mailbox, rendering, stream=body.stream)


def _problem(body: Body, prompts: list[array[int]], longest: int) -> str:
    """What is wrong with a request, if anything is."""
    if body.scored and body.stream:
        return "prompt_logprobs: cannot be streamed; leave out stream"
    for prompt in prompts:
        if not prompt or len(prompt) >= longest:
            return f"a prompt of {len(prompt)} tokens; this engine takes 1 to {longest - 1}"
    return ""


class DeliveredResponse(Response):
    """Sends what is delivered, and aborts the request if its client leaves."""

    def __init__(
        self,
        replica: EmulatedReplica,
        choices: list[AnswerChoice],
        mailbox: Mailbox,
        rendering: Rendering,
        *,
        stream: bool,
    ) -> None:
        kind = "text/event-stream; charset=utf-8" if stream else "application/json"
        self.raw_headers = [(b"content-type", kind.encode())]
        if rendering.id.isascii() and rendering.id.isprintable():
            self.raw_headers.append((b"x-request-id", rendering.id.encode()))
        self.background = None
        self.status_code = 200
        self._replica, self._choices, self._mailbox, self._rendering = replica, choices, mailbox, rendering
        self._stream = stream
        self._places = {choice.number: index for index, choice in enumerate(choices)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.ensure_future(self._watch(receive))
        try:
            await (self._send_stream(send) if self._stream else self._send_whole(send))
        finally:
            watch.cancel()
            self._replica.abort(self._choices)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._replica.abort(self._choices)

    async def _send_stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        opening = self._rendering.opening()
        sent = [0] * len(self._choices)
        left = len(self._choices)
        while left:
            parts = [opening]
            opening = b""
            for delivery in await self._mailbox.take():
                index = self._places[delivery.request]
                if delivery.finish == "reject":
                    parts.append(self._rendering.failure(delivery.why))
                    await send({"type": "http.response.body", "body": b"".join(parts)})
                    return
                parts.append(self._rendering.chunk(index, sent[index], delivery.tokens, self._finish(index, delivery)))
                sent[index] = delivery.tokens
                left -= delivery.finish != ""
            if not left:
                parts.append(self._rendering.closing())
            await send({"type": "http.response.body", "body": b"".join(parts), "more_body": left > 0})

    async def _send_whole(self, send: Send) -> None:
        finishes: list[str | None] = [None] * len(self._choices)
        answer: Response | None = None
        while None in finishes:
            for delivery in await self._mailbox.take():
                if delivery.finish == "reject":
                    answer = JSONResponse(error(delivery.why, "InternalServerError", 500), 500)
                index = self._places[delivery.request]
                finishes[index] = self._finish(index, delivery)
        if answer is None:
            answer = Response(orjson.dumps(self._rendering.whole([each or "" for each in finishes])), media_type=_JSON)
        await answer({"type": "http"}, _nothing, send)

    def _finish(self, index: int, delivery: Delivery) -> str | None:
        if not delivery.finish:
            return None
        return "stop" if delivery.finish == "length" and self._choices[index].stops else delivery.finish


async def _nothing() -> Any:
    return {"type": "http.disconnect"}


def _add_watching(app: FastAPI, replica: EmulatedReplica) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        own = {"id": replica.name, "object": "model", "created": 0, "owned_by": "steelyard", "root": replica.name}
        return {"object": "list", "data": [own | {"parent": None, "max_model_len": replica.longest}]}

    @app.get("/health")
    @app.get("/ping")
    async def health() -> Response:
        return Response(status_code=200)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": f"steelyard {_VERSION}, emulated"}

    @app.get("/load")
    async def load() -> dict[str, int]:
        return {"server_load": len(replica.choices)}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(replica.observe().text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_operators(app: FastAPI, replica: EmulatedReplica) -> None:
    level = 1

    @app.post("/pause")
    async def pause(
        mode: PauseMode = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> dict[str, str]:
        await replica.pause("wait" if wait_for_inflight_requests else mode, clear_cache)
        return {"status": "paused"}

    @app.post("/resume")
    async def resume() -> dict[str, str]:
        replica.resume()
        return {"status": "resumed"}

    @app.get("/is_paused")
    async def is_paused() -> dict[str, bool]:
        return {"is_paused": replica.paused}

    @app.post("/abort_requests")
    async def abort_requests(
        request_ids: Annotated[list[str] | None, FromBody(embed=True)] = None,
    ) -> dict[str, Any]:
        wanted = replica.named(request_ids) if request_ids else replica.choices
        replica.abort(wanted)
        return {"status": "aborted", "aborted": len(wanted)}

    @app.post("/sleep")
    async def sleep(level_: Annotated[int, Query(alias="level", ge=0, le=2)] = 1) -> Response:
        nonlocal level
        level = level_
        await replica.sleep(level)
        return Response(status_code=200)

    @app.post("/wake_up")
    async def wake_up() -> Response:
        await replica.wake(level)
        return Response(status_code=200)

    @app.get("/is_sleeping")
    async def is_sleeping() -> dict[str, bool]:
        return {"is_sleeping": replica.asleep}

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        replica.engine.names.forget()
        return Response(status_code=200)


def _add_weights(app: FastAPI, replica: EmulatedReplica) -> None:
    @app.post("/init_weight_transfer_engine")
    async def init_weight_transfer_engine(init_info: Annotated[dict[str, Any], FromBody(embed=True)]) -> dict[str, str]:
        return {"message": "Weight transfer initialized"}

    @app.post("/start_weight_update")
    async def start_weight_update() -> dict[str, str]:
        return {"message": "Weight update started"}

    @app.post("/update_weights")
    async def update_weights(update_info: Annotated[dict[str, Any], FromBody(embed=True)]) -> dict[str, str]:
        await replica.spend(replica.loading.update)
        version = update_info.get("weight_version")
        if version is not None:
            replica.update_weights(str(version))
        return {"message": "Weights updated"}

    @app.post("/finish_weight_update")
    async def finish_weight_update(
        weight_version: Annotated[str | None, FromBody(embed=True)] = None,
    ) -> dict[str, str]:
        if weight_version is not None:
            replica.update_weights(weight_version)
        return {"message": "Weight update finished"}

    @app.post("/update_weight_version")
    async def update_weight_version(new_version: Annotated[str, FromBody(embed=True)]) -> dict[str, Any]:
        replica.update_weights(new_version)
        return {"success": True, "new_version": new_version}

    @app.get("/weight_info")
    async def weight_info() -> dict[str, str]:
        return {"weight_version": replica.weights.version}

    @app.get("/get_world_size")
    async def get_world_size() -> dict[str, int]:
        return {"world_size": replica.gpus}


def _add_faults(app: FastAPI, replica: EmulatedReplica) -> None:
    usual = replica.clock.speed

    @app.post("/emulate/fault")
    async def fault(wanted: Fault) -> dict[str, str]:
        if wanted.kind == "crash":
            asyncio.get_running_loop().call_soon(replica.crash)
        elif wanted.kind == "hang":
            replica.hang()
        elif wanted.kind == "slow":
            replica.clock.set_speed(usual / wanted.factor)
            replica.poke()
        elif wanted.kind == "stale":
            replica.weights.stale = True
        else:
            replica.weights.stale = False
            replica.clock.set_speed(usual)
            replica.recover()
        return {"fault": wanted.kind}

    @app.post("/emulate/logprobs")
    async def logprobs(wanted: Scored) -> dict[str, list[float]]:
        logprob = logprob_of(replica.weights.answers)
        return {"logprobs": [logprob(place, token) for place, token in enumerate(wanted.tokens)][1:]}
