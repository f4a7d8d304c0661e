"""Agents that play a scenario's trajectories through the gateway: they ask for turns, and their tools take a while."""

from __future__ import annotations

import asyncio
import logging
from hashlib import shake_128

import numpy as np

from steelyard.balance.commands import Start
from steelyard.balance.kinds import Command
from steelyard.live.client import GatewayLink, TrajectoryOver, ask
from steelyard.live.wire import Message, command_of
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.starts import Drawing
from steelyard.records import Trajectory

log = logging.getLogger("steelyard.agents")

_HIGHEST = 30_000  # of token ids


class EmulatedAgents:
    """The sampler of a run: begins samples when the core says so, and plays each to its end.

    A new one is told all that was ever begun, and plays groups again that are not complete: turns that were answered
    are answered from the gateway's journal at once, and trajectories that are over are refused.
    """

    def __init__(self, setup: PosttrainSetup, gateway: GatewayLink, speed: float) -> None:
        self._gateway, self._speed = gateway, speed
        self._drawing = Drawing(setup)
        self._playing: set[asyncio.Task[None]] = set()
        self.tokens: dict[str, int] = {}  # of each sample's whole context
        self.generated: dict[str, int] = {}

    # -- duties -------------------------------------------------------------------------------------------------

    def catch_up(self, state: Message) -> None:
        unfinished = frozenset(state["unfinished"])
        for row in state["starts"]:
            self._begin(command_of(row), unfinished)

    def carry_out(self, command: Command) -> None:
        self._begin(command)

    def _begin(self, command: Command, wanted: frozenset[str] | None = None) -> None:
        """Draw samples, and play those of groups that are wanted; all without a set of them."""
        assert isinstance(command, Start)
        for trajectory, group in self._drawing.in_order(command):
            self.tokens[trajectory.id], self.generated[trajectory.id] = trajectory.tokens, trajectory.generated
            if wanted is not None and group not in wanted:
                continue
            task = asyncio.ensure_future(self._play(trajectory, group))
            self._playing.add(task)
            task.add_done_callback(self._over)

    def notice(self, notice: Message) -> None:
        pass

    def close(self) -> None:
        """Stop playing."""
        for task in self._playing:
            task.cancel()

    # -----------------------------------------------------------------------------------------------------------

    def _over(self, task: asyncio.Task[None]) -> None:
        self._playing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("an agent failed", exc_info=task.exception())

    async def _play(self, trajectory: Trajectory, group: str) -> None:
        context = _tokens(f"prompt {trajectory.prompt}", trajectory.prompt_tokens)
        headers = {"x-session-id": trajectory.id, "x-group-id": group}
        try:
            for number, turn in enumerate(trajectory.turns):
                body = {"prompt": context, "max_tokens": turn.generated, "ignore_eos": True}
                answer = await ask(self._gateway, "/v1/completions", {**headers, "x-turn": str(number)}, body)
                context += answer["choices"][0]["token_ids"]
                if number + 1 == len(trajectory.turns):
                    break
                await asyncio.sleep((turn.latency or 0.0) / self._speed)
                told = {"tool": turn.tool or "tool", "outcome": turn.outcome, "tokens": turn.returned}
                await ask(self._gateway, f"/v1/trajectories/{trajectory.id}/tool_return", headers, told)
                context += _tokens(f"tool {trajectory.id} {number}", turn.returned)
            await ask(self._gateway, f"/v1/trajectories/{trajectory.id}/end", headers, {})
        except TrajectoryOver:
            pass


def _tokens(name: str, count: int) -> list[int]:
    """Tokens that follow from a name."""
    drawn = np.frombuffer(shake_128(name.encode()).digest(2 * count), dtype=np.uint16)
    found: list[int] = (drawn % _HIGHEST + 2).tolist()
    return found
