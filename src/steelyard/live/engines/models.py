"""What engines with OpenAI's interface have in common: the list of models, and a page of metrics if there is one."""

from __future__ import annotations

from pydantic import BaseModel

from steelyard.live.engines.api import EngineLoad, ModelInfo
from steelyard.live.engines.http import Call, EngineHttp
from steelyard.live.engines.metrics import load_of


class _ModelCard(BaseModel):
    id: str
    max_model_len: int | None = None


class _ModelList(BaseModel):
    data: list[_ModelCard]


async def served_model(http: EngineHttp) -> ModelInfo:
    """The first model that an engine lists: adapters come after it."""
    call = Call("GET", "/v1/models", http.limits.look)
    cards = (await http.read(_ModelList, call)).data
    if not cards:
        raise http.failure(call, "it lists no model")
    return ModelInfo(cards[0].id, cards[0].max_model_len)


async def metrics_load(http: EngineHttp) -> EngineLoad | None:
    """The load that an engine's metrics tell; None if it has no such page."""
    call = Call("GET", "/metrics", http.limits.look)
    reply = await http.ask(call)
    if reply.status == 404:
        return None
    if reply.status != 200:
        raise http.refusal(call, reply)
    return load_of(reply.body.decode(errors="replace"))
