"""verl's load balancer: its agent loops ask it for a server before each turn, and say when the turn is over.

verl makes a Ray actor of the class. It needs neither Ray nor verl itself. Two hooks lead here: the file that
``actor_rollout_ref.rollout.router_config_path`` names, and ``LLMServerManager(load_balancer_cls=...)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any

from steelyard.errors import UserError, did_you_mean
from steelyard.live.adapters.shared import SESSIONS, NoServerUp, SessionRouter

_KEYS = ("router_class", "router", "seed", "sessions")
_NOBODY = "No available servers in load balancer"  # verl's clients look for these words, and try again


class SteelyardLoadBalancer:
    """Places turns with a router of Steelyard. ``request_id`` is a trajectory's, the same for all of its turns."""

    def __init__(
        self,
        servers: Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        max_cache_size: int = SESSIONS,
    ) -> None:
        """``servers`` are Ray actors by address. ``settings`` is the file of verl's ``router_config_path``."""
        settings = settings or {}
        for key in settings:
            if key not in _KEYS:
                raise UserError(f"router_config_path: {key}: not a key; {did_you_mean(str(key), _KEYS)}")
        seed, sessions = (_whole(settings, key, usual) for key, usual in (("seed", 0), ("sessions", max_cache_size)))
        self._router = SessionRouter(str(settings.get("router", "prefix-aware")), seed, sessions)
        self._handles: dict[str, Any] = {}
        self._lock = Lock()  # a server and its actor come and go together
        self.add_servers(servers)

    def require_acquire_fields(self) -> list[str]:
        """What verl sends along when it asks for a server."""
        return ["prompt_ids"] if self._router.reads_prompts else []

    def require_release_fields(self) -> list[str]:
        """What verl sends along when it lets go of one."""
        return ["request_id"]

    def acquire_server(
        self, request_id: str, prompt_ids: Sequence[int] | None = None, **extra: object
    ) -> tuple[str, Any]:
        """A server for a trajectory's next turn: its address and its actor."""
        with self._lock:
            try:
                server = self._router.acquire(request_id, () if prompt_ids is None else prompt_ids)
            except NoServerUp:
                raise RuntimeError(_NOBODY) from None
            return server, self._handles[server]

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """A turn is over, or was aborted."""
        self._router.release(server_id, request_id)

    def add_servers(self, servers: Mapping[str, Any]) -> None:
        """Servers have come up. The actor of one that is known is replaced."""
        with self._lock:
            self._handles |= servers
            self._router.add(servers)

    def remove_servers(self, server_ids: Iterable[str]) -> None:
        """Servers have gone. Their turns count no more, and later releases of these do nothing."""
        with self._lock:
            for server in server_ids:
                self._router.remove([server])
                self._handles.pop(server, None)

    def get_all_servers(self) -> list[str]:
        """Addresses of servers."""
        return list(self._router.loads())

    def get_inflight_count(self, server_id: str) -> int:
        """Turns under way on a server."""
        return self._router.loads().get(server_id, 0)

    def get_total_inflight(self) -> int:
        """Turns under way."""
        return sum(self._router.loads().values())

    def get_status(self) -> dict[str, Any]:
        """Loads, in verl's words."""
        loads = self._router.loads()
        return {
            "servers": loads,
            "total_inflight": sum(loads.values()),
            "active_servers": len(loads),
            "registered_handles": list(self._handles),
        }

    def clear_sticky_cache(self) -> dict[str, Any]:
        """Forget where trajectories went, so that all of them are placed anew."""
        return {"cleared_entries": self._router.forget_sessions(), "server_loads": self._router.loads()}


def _whole(settings: Mapping[str, Any], key: str, usual: int) -> int:
    found = settings.get(key, usual)
    if not isinstance(found, int) or isinstance(found, bool):
        raise UserError(f"router_config_path: {key}: must be a whole number (found {found!r})")
    return found
