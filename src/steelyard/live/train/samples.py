"""Samples that are trained on: trajectories with what was recorded when they were generated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor

from steelyard.errors import UserError


@dataclass(frozen=True)
class Sample:
    """A trajectory, its tokens and its reward. Only generated tokens are trained on, not prompts and results of tools.

    ``logprobs`` and ``versions`` have an entry for each generated token: its log-probability when it was generated, at
    temperature 1, and the version of the weights that generated it.
    """

    trajectory: str
    group: str
    tokens: list[int]
    generated: list[bool]
    logprobs: list[float]
    versions: list[int]
    reward: float


@dataclass(frozen=True)
class TrainingRow:
    """A sample as a replica computes it."""

    tokens: Tensor  # int32
    generated: Tensor  # bool
    behaviour: Tensor  # log-probabilities of generated tokens when they were generated
    advantage: float
    proximal: Tensor | None = None  # those by the weights that the step began with; None if these are the present ones

    @property
    def length(self) -> int:
        """All tokens: what it costs to compute."""
        return int(self.tokens.numel())

    def seen(self, logprobs: Tensor) -> TrainingRow:
        """The same row, in later passes of its step."""
        return replace(self, proximal=logprobs)


def check(sample: Sample, vocabulary: int) -> None:
    """Raise UserError unless a sample's parts fit together."""
    where = f"trajectory {sample.trajectory}"
    if len(sample.tokens) < 2 or len(sample.generated) != len(sample.tokens):
        raise UserError(
            f"{where}: {len(sample.tokens)} tokens and {len(sample.generated)} marks; must be as many, >= 2"
        )
    if sample.generated[0]:
        raise UserError(f"{where}: its first token is generated; there must be a prompt before it")
    count = sum(sample.generated)
    if len(sample.logprobs) != count or len(sample.versions) != count:
        raise UserError(
            f"{where}: {count} generated tokens, {len(sample.logprobs)} logprobs and {len(sample.versions)} versions; "
            "must be as many"
        )
    if not all(0 <= token < vocabulary for token in sample.tokens):
        raise UserError(f"{where}: has a token that is not in 0 to {vocabulary - 1}")
    if not all(isfinite(each) for each in (*sample.logprobs, sample.reward)):
        raise UserError(f"{where}: has a log-probability or a reward that is not finite")


def row_of(sample: Sample, advantage: float) -> TrainingRow:
    """A sample that was compared with its group."""
    return TrainingRow(
        torch.tensor(sample.tokens, dtype=torch.int32),
        torch.tensor(sample.generated, dtype=torch.bool),
        torch.tensor(sample.logprobs, dtype=torch.float32),
        advantage,
    )


def staleness(samples: Sequence[Sample], version: int) -> tuple[tuple[int, int], ...]:
    """Generated tokens by how many versions their weights were behind."""
    return tuple(sorted(Counter(version - each for sample in samples for each in sample.versions).items()))


def shares(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Split rows so that each part has about as many tokens: the longest first, each to the smallest part."""
    found: list[list[int]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        part = loads.index(min(loads))
        found[part].append(row)
        loads[part] += lengths[row]
    return found


def packed(rows: Sequence[TrainingRow]) -> dict[str, Tensor]:
    """Rows as a few tensors. Either all have proximal log-probabilities, or none has."""
    proximal = [row.proximal for row in rows if row.proximal is not None]
    return {
        "lengths": torch.tensor([row.length for row in rows], dtype=torch.int32),
        "advantages": torch.tensor([row.advantage for row in rows], dtype=torch.float32),
        "tokens": _joined([row.tokens for row in rows], torch.int32),
        "behaviour": _joined([row.behaviour for row in rows], torch.float32),
        "proximal": _joined(proximal, torch.float32),
        "generated": _joined([row.generated for row in rows], torch.bool).to(torch.uint8),
    }


def unpacked(tensors: dict[str, Tensor]) -> list[TrainingRow]:
    """What `packed` made."""
    lengths: list[int] = tensors["lengths"].tolist()
    generated = torch.split(tensors["generated"].to(torch.bool), lengths)
    counts = [int(each.sum()) for each in generated]
    behaviour = torch.split(tensors["behaviour"], counts)
    proximal = torch.split(tensors["proximal"], counts) if tensors["proximal"].numel() else [None] * len(lengths)
    tokens, advantages = torch.split(tensors["tokens"], lengths), tensors["advantages"].tolist()
    return [TrainingRow(*each) for each in zip(tokens, generated, behaviour, advantages, proximal, strict=True)]


def _joined(parts: Sequence[Tensor], kind: torch.dtype) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.empty(0, dtype=kind)
