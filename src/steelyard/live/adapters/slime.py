"""slime: ``--sglang-router-ip`` and ``--sglang-router-port`` lead here, in place of SGLang's own router.

slime registers its engines, or those of ``--rollout-external-engine-addrs``, and sends prompts as token ids. To stop a
rollout it asks which engines there are and goes to each of them. Weights never pass through the router.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from steelyard.errors import UserError
from steelyard.live.access import Access
from steelyard.live.adapters.broadcast import Broadcast, Operation
from steelyard.live.adapters.calls import PathApp, answer, body_of, check, json_of
from steelyard.live.adapters.forward import Forward
from steelyard.live.adapters.workers import WorkerFleet
from steelyard.live.requests import Refused

SESSION = "x-smg-routing-key"
TURNS = {"/generate": "input_ids"}
OPERATIONS = {"/abort_request": Operation(every=False)}
_WORKERS = "/workers"
_MOST_BYTES = 1 << 16  # of a registration
_OLDER = {("POST", "/add_worker"), ("POST", "/remove_worker"), ("GET", "/list_workers")}  # routers up to 0.2.1


def slime_apps(fleet: WorkerFleet, access: Access) -> list[PathApp]:
    """What slime asks for beside OpenAI's interface."""
    turns = Forward(fleet, access, TURNS, SESSION)
    return [turns, Workers(fleet, access), Broadcast(fleet, access, OPERATIONS, scope="client")]


class Workers:
    """Engines register, are listed, and leave."""

    def __init__(self, fleet: WorkerFleet, access: Access) -> None:
        self._fleet = fleet
        self._access = access

    def serves(self, method: str, path: str) -> bool:
        known = (method, path) in {("GET", _WORKERS), ("POST", _WORKERS)} | _OLDER
        return known or (method == "DELETE" and path.startswith(f"{_WORKERS}/"))

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        method, path = connection["method"], connection["path"]
        check(self._access, connection, "client" if method == "GET" else "engine")
        url = parse_qs(connection["query_string"].decode("latin-1")).get("url", [""])[0]
        match method, path:
            case "GET", "/list_workers":
                found: dict[str, Any] = {"urls": list(self._fleet.workers.values())}
            case "GET", _:
                found = self._listed()
            case "POST", "/add_worker":
                found = self._add(url)
            case "POST", "/remove_worker":
                found = self._remove(url)
            case "POST", _:
                found = self._register(json_of(await body_of(receive, _MOST_BYTES)))
            case _:
                found = self._remove(path.removeprefix(f"{_WORKERS}/"))
        await answer(send, found)

    def _listed(self) -> dict[str, Any]:
        rows = [
            {"id": str(number), "url": url, "worker_type": "regular", "is_healthy": self._fleet.up[number]}
            for number, url in self._fleet.workers.items()
        ]
        return {"workers": rows, "total": len(rows)}

    def _register(self, told: dict[str, Any]) -> dict[str, Any]:
        if told.get("worker_type", "regular") != "regular":
            raise Refused(400, "worker_type: must be regular; prefill and decode engines are not supported")
        return self._add(told.get("url"))

    def _add(self, url: object) -> dict[str, Any]:
        try:
            number = self._fleet.add(str(url))
        except UserError as mistake:
            raise Refused(400, str(mistake)) from None
        return {"status": "accepted", "worker_id": str(number), "url": self._fleet.workers[number]}

    def _remove(self, name: str) -> dict[str, Any]:
        """An engine leaves, known by its identifier or by its address."""
        for number, url in self._fleet.workers.items():
            if name in (str(number), url):
                self._fleet.remove(number)
                return {"status": "accepted", "worker_id": str(number)}
        raise Refused(404, "no such worker")
