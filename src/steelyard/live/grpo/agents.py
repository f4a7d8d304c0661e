"""Agents that work out sums: they ask for turns, call the calculator, and are rewarded for the right answer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from zlib import crc32

from steelyard.balance.commands import Start
from steelyard.balance.kinds import Command
from steelyard.live.client import GatewayLink, TrajectoryOver, ask
from steelyard.live.tiny.symbols import CALL_END, EOS, decode, encode, token
from steelyard.live.tiny.task import prompt, reward, tool
from steelyard.live.wire import Message, command_of

log = logging.getLogger("steelyard.agents")

TURNS = 3  # of a trajectory, at most; chosen
TURN_TOKENS = 24  # of a turn, at most: enough for the longest call
_STOPS = [token(CALL_END), token(EOS)]


class CalculatorAgents:
    """The sampler of a run.

    A new one is told all that was ever begun, and plays groups again that are not complete: turns that were answered
    come from the gateway's journal, and trajectories that are over are refused.
    """

    def __init__(self, gateway: GatewayLink, seed: int) -> None:
        self._gateway, self._seed = gateway, seed
        self._samples: Counter[str] = Counter()  # of each group so far
        self._playing: set[asyncio.Task[None]] = set()

    # -- duties -------------------------------------------------------------------------------------------------

    def catch_up(self, state: Message) -> None:
        unfinished = frozenset(state["unfinished"])
        for row in state["starts"]:
            self._begin(command_of(row), unfinished)

    def carry_out(self, command: Command) -> None:
        self._begin(command)

    def _begin(self, command: Command, wanted: frozenset[str] | None = None) -> None:
        """Play samples of groups that are wanted; of all without a set of them."""
        assert isinstance(command, Start)
        for group in command.groups:
            for _ in range(command.samples):
                name = f"{group}-{self._samples[group]}"
                self._samples[group] += 1
                if wanted is not None and group not in wanted:
                    continue
                task = asyncio.ensure_future(self._play(name, group))
                self._playing.add(task)
                task.add_done_callback(self._over)

    def notice(self, notice: Message) -> None:
        pass

    # -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop playing."""
        for task in self._playing:
            task.cancel()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._playing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("an agent failed", exc_info=task.exception())

    async def _play(self, name: str, group: str) -> None:
        tokens = encode(prompt(self._seed, int(group)))
        headers = {"x-session-id": name, "x-group-id": group}
        try:
            for turn in range(TURNS):
                body = {
                    "prompt": tokens,
                    "max_tokens": TURN_TOKENS,
                    "stop_token_ids": _STOPS,
                    "temperature": 1.0,
                    "logprobs": 1,
                    "seed": crc32(f"{self._seed} {name} {turn}".encode()) >> 1,
                }
                answer = await ask(self._gateway, "/v1/completions", {**headers, "x-turn": str(turn)}, body)
                tokens = tokens + answer["choices"][0]["token_ids"]
                returned = tool(decode(tokens))
                if returned is None or turn + 1 == TURNS:
                    break
                result = encode(returned)
                told = {"tool": "calculator", "outcome": "error" if "?" in returned else "ok", "tokens": len(result)}
                await ask(self._gateway, f"/v1/trajectories/{name}/tool_return", headers, told)
                tokens = tokens + result
            await ask(self._gateway, f"/v1/trajectories/{name}/end", headers, {"reward": reward(decode(tokens))})
        except TrajectoryOver:
            pass
