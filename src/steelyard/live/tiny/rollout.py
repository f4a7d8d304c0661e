"""Rollouts of the calculator task in this process, without a server: for tests and small experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch.nn import Module

from steelyard.live.tiny.decoding import DecodeRow, generate
from steelyard.live.tiny.symbols import CALL_END, EOS, decode, encode, token
from steelyard.live.tiny.task import prompt, reward, tool
from steelyard.live.train.samples import Sample

STOPS = frozenset((token(CALL_END), token(EOS)))
TURNS = 3  # of a trajectory, at most; chosen
TURN_TOKENS = 24  # of a turn, at most: enough for the longest call

_SEEDS = 1_000_003  # a prime, so that rows of different trajectories draw different numbers


@dataclass
class _Trajectory:
    """One that is generated."""

    group: str
    number: int
    tokens: list[int]
    generated: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    over: bool = False

    def __post_init__(self) -> None:
        self.generated = [False] * len(self.tokens)

    def take(self, row: DecodeRow) -> None:
        """Add a turn, and what its tool returns."""
        self.tokens = row.tokens
        self.generated += [True] * len(row.generated)
        self.logprobs += row.logprobs
        returned = tool(decode(self.tokens)) if row.finish == "stop" else None
        self.over = returned is None
        if returned is not None:
            result = encode(returned)
            self.tokens = self.tokens + result
            self.generated += [False] * len(result)

    def sample(self, version: int) -> Sample:
        return Sample(
            trajectory=f"{self.group}-{self.number}",
            group=self.group,
            tokens=self.tokens,
            generated=self.generated,
            logprobs=self.logprobs,
            versions=[version] * len(self.logprobs),
            reward=reward(decode(self.tokens)),
        )


def roll_out(model: Module, seed: int, prompts: Sequence[int], samples: int, version: int) -> list[Sample]:
    """So many samples of each of these prompts. The same seed, prompts and weights give the same samples."""
    found = [
        _Trajectory(f"{seed}-{index}", number, encode(prompt(seed, index)))
        for index in prompts
        for number in range(samples)
    ]
    for turn in range(TURNS):
        running = [(place, each) for place, each in enumerate(found) if not each.over]
        seeds = [(version * TURNS + turn) * _SEEDS + place for place, _ in running]
        rows = [
            DecodeRow(list(each.tokens), TURN_TOKENS, seed=own, stops=STOPS)
            for (_, each), own in zip(running, seeds, strict=True)
        ]
        generate(model, rows)
        for (_, each), row in zip(running, rows, strict=True):
            each.take(row)
    return [each.sample(version) for each in found]
