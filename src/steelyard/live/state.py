"""What a member that is new to a run is told: how things stand, from the core and the store alone."""

from __future__ import annotations

from typing import Any

from steelyard.balance.core import Core
from steelyard.live.control import role_commands
from steelyard.live.controller import Controller
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
        caps = [row for row in _commands(controller, role) if row["kind"] == "Cap"]
        return {"running": running(core), "cap": caps[-1]["tokens"] if caps else None}
    if role == "sampler":
        return {"starts": _commands(controller, role)}
    if role == "trainer":
        rows = [row for row in _commands(controller, role) if row["kind"] == "TrainOn"]
        orders = [row for row in rows if row["step"] > core.trained]
        return {"orders": orders, "asked": core.asked, "pool": pool_members(core)}
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


def _commands(controller: Controller, role: Role) -> list[Message]:
    controller.flush()
    return role_commands((line for _, _, line in controller.store.commands()), role)
