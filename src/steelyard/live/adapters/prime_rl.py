"""prime-rl: ``orchestrator.model.client.base_url`` leads here.

Its clients send a trajectory's name in ``X-Session-ID``. For a weight update it pauses engines (``mode=keep``) and has
them resume afterwards. With ``admin_base_url`` it reaches engines by itself for that. Without, these calls are passed
on to all.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from steelyard.live.access import Access
from steelyard.live.adapters.broadcast import Broadcast, Operation
from steelyard.live.adapters.calls import PathApp, json_of
from steelyard.live.adapters.forward import Forward
from steelyard.live.adapters.workers import WorkerFleet
from steelyard.live.requests import Refused
from steelyard.live.upstream import Upstream

SESSION = "x-session-id"
TURNS = {"/inference/v1/generate": "token_ids"}


def prime_rl_apps(fleet: WorkerFleet, access: Access) -> list[PathApp]:
    """What prime-rl asks for beside OpenAI's interface."""
    return [Forward(fleet, access, TURNS, SESSION), Broadcast(fleet, access, OPERATIONS)]


async def equal_ranks(body: bytes, engines: Sequence[Upstream]) -> list[bytes]:
    """Ranks of the group for weights: all engines have as many GPUs, as prime-rl has it."""
    told = json_of(body)
    offset, world = told.get("rank_offset"), told.get("inference_world_size")
    if not isinstance(offset, int) or not isinstance(world, int) or world < 1:
        raise Refused(400, "rank_offset, inference_world_size: must be whole numbers")
    if world % len(engines):
        raise Refused(400, f"inference_world_size: {world} GPUs do not divide among {len(engines)} engines")
    each = world // len(engines)
    return [orjson.dumps({**told, "rank_offset": offset + place * each}) for place in range(len(engines))]


OPERATIONS = {
    "/pause": Operation(undo="/resume"),
    "/resume": Operation(every=False),
    "/update_weights": Operation(),
    "/load_lora_adapter": Operation(),
    "/v1/unload_lora_adapter": Operation(),
    "/init_broadcaster": Operation(bodies=equal_ranks),
    "/liveness": Operation("GET"),
}
"""For a client without ``admin_base_url``."""
