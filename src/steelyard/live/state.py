"""What a member that is new to a run is told: how things stand, from the core and the store alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from steelyard.balance.core import Core
from steelyard.files.jsontext import json_row
from steelyard.live.controller import Controller
from steelyard.live.store import KeptKind
from steelyard.live.wire import Message, Role


def news_for(role: Role, controller: Controller, engines: Message) -> Message:
    """What members of this role are notified of when it changes."""
    if role == "gateway":
        return {"engines": engines}
    return {"published": controller.core.published} if role == "trainer" else {}


def state_for(role: Role, controller: Controller) -> Message:
    """The state of a run as a member of this role needs it, beside its news."""
    core = controller.core
    if role == "gateway":
        cap = next(_newest_first(controller, "Cap"), None)
        return {"running": running(core), "cap": None if cap is None else cap["tokens"]}
    if role == "sampler":
        starts = list(_newest_first(controller, "Start"))
        return {"starts": starts[::-1], "unfinished": core.rounds.unfinished()}
    if role == "trainer":
        orders = list(takewhile(lambda row: row["step"] > core.trained, _newest_first(controller, "TrainOn")))
        return {"orders": orders[::-1], "asked": core.asked, "pool": pool_members(core)}
    return {}


def pool_members(core: Core) -> list[dict[str, Any]]:
    """Hybrid replicas of the pool, if there is one."""
    members = [] if core.pool is None else core.pool.members.values()
    return [{"replica": each.replica, "state": each.state.value, "epoch": each.epoch} for each in members]


def running(core: Core) -> list[dict[str, Any]]:
    """Trajectories under way."""
    return [
        {
            "name": name,
            "version": each.version,
            "context": each.history.context,
            "epoch": each.epoch,
            "turns": len(each.history.turns),
            "doing": each.doing,
            "replica": each.target if each.target is not None else each.replica if each.doing == "generating" else None,
        }
        for name, each in core.placement.rollouts.running.items()
    ]


def _newest_first(controller: Controller, kind: KeptKind) -> Iterator[Message]:
    """Commands of a kind."""
    controller.flush()
    return (json_row(line, "store") for line in controller.store.newest_first(kind))
