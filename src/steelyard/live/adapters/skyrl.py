"""SkyRL: ``generator.inference_engine.external_proxy_url`` leads here.

Its client sends turns to the proxy, with a trajectory's name in ``X-Session-ID``, and says when a trajectory is over.
With ``external_server_urls`` it reaches engines by itself for pauses and weights. Without, the proxy passes these on to
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs

import orjson
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from steelyard.live.access import Access
from steelyard.live.adapters.broadcast import Broadcast, EngineAnswer, Operation, ask
from steelyard.live.adapters.calls import PathApp, answer, check, json_of
from steelyard.live.adapters.forward import Forward
from steelyard.live.adapters.workers import WorkerFleet
from steelyard.live.requests import Refused
from steelyard.live.upstream import Upstream

SESSION = "x-session-id"
TURNS = {
    "/inference/v1/generate": "token_ids",
    "/skyrl/v1/generate": "token_ids",
    "/v1/chat/completions/render": "messages",
    "/tokenize": "prompt",
    "/detokenize": "tokens",
}
_ASK_SECONDS = 30.0  # for the number of an engine's GPUs
_RPC = ("skyrl_start_weight_update", "update_weights_ipc", "update_weights_nccl", "skyrl_finish_weight_update")


def skyrl_apps(fleet: WorkerFleet, access: Access) -> list[PathApp]:
    """What SkyRL asks for beside OpenAI's interface."""
    return [Forward(fleet, access, TURNS, SESSION), SessionEnds(fleet, access), Broadcast(fleet, access, OPERATIONS)]


class SessionEnds:
    """``POST /finish_session?session_id=``: a trajectory is over."""

    def __init__(self, fleet: WorkerFleet, access: Access) -> None:
        self._fleet = fleet
        self._access = access

    def serves(self, method: str, path: str) -> bool:
        return (method, path) == ("POST", "/finish_session")

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        check(self._access, connection, "client")
        for session in parse_qs(connection["query_string"].decode("latin-1")).get("session_id", ()):
            self._fleet.end_session(session)
        await answer(send, {"status": "ok"})


def world_size(answers: Sequence[EngineAnswer]) -> bytes:
    """GPUs of all engines."""
    return orjson.dumps({"world_size": sum(_gpus(each) for each in answers)})


async def own_ranks(body: bytes, engines: Sequence[Upstream]) -> list[bytes]:
    """Ranks of the group for weights: each engine's GPUs come after those of the engines before it."""
    whole = json_of(body)
    told = whole.get("init_info")
    if not isinstance(told, dict) or not isinstance(told.get("rank_offset"), int):
        raise Refused(400, "init_info.rank_offset: must be a whole number")
    offset: int = told["rank_offset"]
    found: list[bytes] = []
    for engine in engines:
        found.append(orjson.dumps({**whole, "init_info": {**told, "rank_offset": offset}}))
        offset += _gpus(await ask(engine, "GET", "/get_world_size", b"", _ASK_SECONDS))
    return found


async def weight_call(body: bytes, engines: Sequence[Upstream]) -> list[bytes]:
    """Of the calls that engines' workers know, those for weights."""
    method = json_of(body).get("method")
    if method not in _RPC:
        raise Refused(403, f"method: must be one of {', '.join(_RPC)}")
    return [body] * len(engines)


def _gpus(said: EngineAnswer) -> int:
    size = json_of(said.body, str(said.engine), 502).get("world_size") if said.done else None
    if not isinstance(size, int):
        raise Refused(502, f"{said.engine}: does not say how many GPUs it has")
    return size


OPERATIONS = {
    "/pause": Operation(undo="/resume"),
    "/resume": Operation(every=False),
    "/sleep": Operation(),
    "/wake_up": Operation(),
    "/reset_prefix_cache": Operation(),
    "/get_world_size": Operation("GET", merge=world_size),
    "/init_weight_transfer_engine": Operation(bodies=own_ranks),
    "/update_weights": Operation(),
    "/collective_rpc": Operation(bodies=weight_call),
    "/skyrl/v1/load_lora_adapter": Operation(),
    "/v1/unload_lora_adapter": Operation(),
}
"""For a proxy without ``external_server_urls``."""
