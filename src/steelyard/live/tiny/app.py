"""The HTTP interface of the small engine: completions, and vLLM's endpoints for operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body as FromBody
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse

from steelyard.emulate.openai import error
from steelyard.errors import UserError
from steelyard.live.tiny.completions import TinyCompletion, TinyCompletionBody
from steelyard.live.tiny.engine import PauseMode, TinyEngine

_VERSION = version_of("steelyard")
_GONE = 499  # a client that has left gets no answer


def tiny_app(engine: TinyEngine) -> FastAPI:
    """All routes."""
    app = FastAPI(title="Steelyard, a small engine", version=_VERSION)
    app.add_exception_handler(RequestValidationError, _refuse)
    app.add_exception_handler(UserError, _refuse)
    _add_clients(app, engine)
    _add_watching(app, engine)
    _add_operators(app, engine)
    _add_weights(app, engine)
    return app


def _refuse(_: Request, problem: Exception) -> JSONResponse:
    message = str(problem)
    if isinstance(problem, RequestValidationError):
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        message = f"{where}: {first['msg']}"
    return JSONResponse(error(message[:500], "BadRequestError", 400), 400)


def _add_clients(app: FastAPI, engine: TinyEngine) -> None:
    @app.post("/v1/completions")
    async def completions(body: TinyCompletionBody, request: Request) -> Response:
        if body.model is not None and body.model != engine.name:
            message = f"The model `{body.model}` does not exist; this engine serves `{engine.name}`."
            return JSONResponse(error(message[:500], "NotFoundError", 404), 404)
        completion = TinyCompletion(body, engine)
        if body.stream:
            return StreamingResponse(_stream(engine, completion), media_type="text/event-stream")
        scored = None
        if body.prompt_logprobs is not None:
            scored = await engine.score(completion.prompt, body.prompt_logprobs)
        for each in completion.requests:
            engine.submit(each)
        if not await _ended(engine, completion, request):
            return Response(status_code=_GONE)
        return JSONResponse(completion.whole(scored))


async def _ended(engine: TinyEngine, completion: TinyCompletion, request: Request) -> bool:
    """Wait for all sequences. False if the client leaves first, for which they are aborted."""
    watch = asyncio.ensure_future(_left(request))
    try:
        while not completion.ended and not watch.done():
            completion.news.clear()
            waiting = asyncio.ensure_future(completion.news.wait())
            await asyncio.wait({watch, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        return completion.ended
    finally:
        watch.cancel()
        engine.abandon(completion.requests)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(engine: TinyEngine, completion: TinyCompletion) -> AsyncIterator[bytes]:
    for each in completion.requests:
        engine.submit(each)
    try:
        while not completion.ended:
            completion.news.clear()
            await completion.news.wait()
            if part := completion.chunk():
                yield part
        yield completion.closing()
    finally:
        engine.abandon(completion.requests)


def _add_watching(app: FastAPI, engine: TinyEngine) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        own = {"id": engine.name, "object": "model", "created": 0, "owned_by": "steelyard", "root": engine.name}
        return {"object": "list", "data": [own | {"parent": None, "max_model_len": engine.longest}]}

    @app.get("/health")
    @app.get("/ping")
    async def health() -> Response:
        return Response(status_code=200)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": f"steelyard {_VERSION}, small engine"}

    @app.get("/load")
    async def load() -> dict[str, int]:
        return {"server_load": len(engine.requests)}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(engine.observe(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_operators(app: FastAPI, engine: TinyEngine) -> None:
    @app.post("/pause")
    async def pause(mode: PauseMode = "abort", wait_for_inflight_requests: bool = False) -> dict[str, str]:
        await engine.pause("wait" if wait_for_inflight_requests else mode)
        return {"status": "paused"}

    @app.post("/resume")
    async def resume() -> dict[str, str]:
        engine.resume()
        return {"status": "resumed"}

    @app.get("/is_paused")
    async def is_paused() -> dict[str, bool]:
        return {"is_paused": engine.paused}

    @app.post("/abort_requests")
    async def abort_requests(
        request_ids: Annotated[list[str] | None, FromBody(embed=True)] = None,
    ) -> dict[str, Any]:
        wanted = [each for each in engine.requests if not request_ids or each.id in request_ids]
        await engine.abort(wanted)
        return {"status": "aborted", "aborted": len(wanted)}

    @app.post("/sleep")
    async def sleep(level: Annotated[int, Query(ge=0, le=2)] = 1) -> Response:
        await engine.sleep()
        return Response(status_code=200)

    @app.post("/wake_up")
    async def wake_up() -> Response:
        await engine.wake()
        return Response(status_code=200)

    @app.get("/is_sleeping")
    async def is_sleeping() -> dict[str, bool]:
        return {"is_sleeping": engine.asleep}

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache(reset_running_requests: bool = False) -> Response:
        if reset_running_requests:
            await engine.recompute()
        return Response(status_code=200)


def _add_weights(app: FastAPI, engine: TinyEngine) -> None:
    @app.post("/update_weights")
    async def update_weights(update_info: Annotated[dict[str, Any], FromBody(embed=True)]) -> dict[str, str]:
        path, version = update_info.get("path"), update_info.get("weight_version")
        if not isinstance(path, str) or version is None:
            raise UserError("update_info: must have the path of a folder and a weight_version")
        await engine.update(Path(path), str(version))
        return {"message": "Weights updated"}

    @app.get("/weight_info")
    async def weight_info() -> dict[str, str]:
        return {"weight_version": engine.version}

    @app.get("/get_world_size")
    async def get_world_size() -> dict[str, int]:
        return {"world_size": 1}
