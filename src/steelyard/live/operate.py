"""What operators ask of a running controller: how things stand, engines out and back, plans held or applied."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from steelyard.errors import UserError
from steelyard.live.control import ControlServer
from steelyard.live.keeper import Keeper
from steelyard.live.member import Address
from steelyard.live.planner import LivePlanner
from steelyard.live.token_rate import TokenRate
from steelyard.live.wire import MOST_BYTES, Message, messages, packed

_PATIENCE_SECONDS = 10.0  # for a controller to answer; chosen


class Operations:
    """Answers operators, in the controller's process. What it changes is reported to the core, so it is in the log.
    The server must be open."""

    def __init__(
        self,
        server: ControlServer,
        keeper: Keeper,
        steps: int,
        stop: asyncio.Event,
        planner: LivePlanner | None = None,
    ) -> None:
        self._server, self._keeper, self._steps, self._stop, self._planner = server, keeper, steps, stop, planner
        self._rate = TokenRate(server.now(), server.speed)
        server.watches.append(self._rate)

    def answer(self, asked: Message) -> Message:
        """What an operator asks for."""
        match asked:
            case {"what": "status"}:
                return self.status()
            case {"what": "release"}:
                self._stop.set()
                return {"fence": self._server.controller.fence}
            case {"what": ("drain" | "restore") as what, "engine": int(number)} if number in self._keeper.engines:
                self._keeper.drain(number, what == "drain")
                return {"engine": number, "drained": what == "drain"}
            case {"what": "drain" | "restore", "engine": number}:
                known = ", ".join(map(str, self._keeper.engines))
                raise UserError(f"engine: must be one of {known} (found {str(number)[:40]!r})")
            case {"what": ("plan" | "apply" | "pause" | "continue") as what}:
                return self._plan(what)
        raise UserError("what: must be status, release, plan, apply, pause, continue, drain or restore")

    def _plan(self, what: str) -> Message:
        """The plan in force and the one proposed; whether changes wait for an operator."""
        planner = self._planner
        if planner is None:
            raise UserError("this run has no planner; give its scenario one, such as planner: simulated")
        if what == "apply" and not planner.apply():
            raise UserError("no change of plan is proposed; `control plan` shows proposals")
        if what in ("pause", "continue"):
            planner.pause(what == "pause")
        return planner.status()

    def status(self) -> Message:
        """How things stand."""
        core = self._server.controller.core
        rollouts = core.placement.rollouts
        second = self._server.now()
        return {
            "second": second,
            "tokens_per_second": self._rate.tokens_per_second(second),
            "queue": len(rollouts.waiting),
            "steps": self._steps,
            "weights": core.published,
            "trained": core.trained + 1,
            "events": self._server.controller.events,
            "fence": self._server.controller.fence,
            "members": [list(each) for each in self._server.members()],
            "trajectories": dict(sorted(Counter(each.doing for each in rollouts.running.values()).items())),
            "dropped": dict(sorted(core.dropped.items())),
            "engines": [self._engine(number) for number in sorted(self._keeper.engines)],
            "planner": None if self._planner is None else self._planner.status(),
        }

    def _engine(self, number: int) -> dict[str, Any]:
        engine = self._keeper.engines[number]
        replica = self._server.controller.core.placement.rollouts.replicas.get(number)
        state = "up" if replica is not None else "down"
        if engine.quarantined:
            state = f"not used: {engine.quarantined}"
        elif engine.drained:
            state = "drained"
        elif engine.lent:
            state = "lent to training"
        return {
            "number": number,
            "url": engine.api.url,
            "tp": engine.tp,
            "state": state,
            "weights": engine.version,
            "busy": 0 if replica is None else replica.busy,
            "seats": engine.seats,
        }


def ask_controller(address: Address, asked: Message) -> Message:
    """The answer of a run's controller."""
    try:
        return asyncio.run(_ask(address, asked))
    except (OSError, TimeoutError):
        raise UserError(f"{address.host}:{address.port}: no controller answers; is the run over?") from None


async def _ask(address: Address, asked: Message) -> Message:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=MOST_BYTES)
        try:
            hello = {"role": "operator", "name": "operator", "seen": None, "token": address.token}
            writer.write(packed({"hello": hello}) + packed({"operate": asked}))
            async for message in messages(reader):
                if "answer" in message:
                    found: Message = message["answer"]
                    return found
                if "refused" in message:
                    raise UserError(str(message["refused"]))
        finally:
            writer.close()
    raise ConnectionError
