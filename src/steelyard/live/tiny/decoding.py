"""Continuous batching with a KV cache: in every step each row of the batch gets one token, and rows come and go.

Caches of all rows lie in one tensor per layer, padded on the left. A new row's context is computed in the step in which
it comes, together with those of the same length, so that nothing is padded there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad
from transformers import DynamicCache

FinishReason = Literal["", "stop", "length", "abort"]


@dataclass(eq=False)
class DecodeRow:
    """One sequence that is generated. With the same ``seed`` it draws the same numbers in any batch."""

    tokens: list[int]  # of the prompt, and then all
    most: int  # tokens to generate
    temperature: float = 1.0
    seed: int = 0
    stops: frozenset[int] = frozenset()
    logprobs: list[float] = field(default_factory=list)  # of generated tokens, before temperature
    finish: FinishReason = ""

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)
        self._draw = Random(self.seed)

    @property
    def generated(self) -> list[int]:
        """Tokens after the prompt; the one that stopped it is among them."""
        return self.tokens[self.prompt :]

    def chance(self) -> float:
        """The next number that decides on a token."""
        return self._draw.random()

    def add(self, token: int, logprob: float) -> None:
        """Take a token."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.stops:
            self.finish = "stop"
        elif len(self.logprobs) >= self.most:
            self.finish = "length"


@dataclass
class _Cached:
    """Rows whose contexts are cached, but for their last tokens."""

    rows: list[DecodeRow]
    layers: list[tuple[Tensor, Tensor]]  # keys and values: row, head, place, dimension

    @property
    def width(self) -> int:
        return max((len(row.tokens) - 1 for row in self.rows), default=0)

    def kept(self, wanted: Sequence[DecodeRow]) -> _Cached:
        """Some of the rows, without padding that all of them have."""
        places = [self.rows.index(row) for row in wanted]
        found = _Cached(list(wanted), [])
        if places:
            found.layers = [(each[0][places], each[1][places]) for each in self.layers]
            found.layers = [_fitted(each, found.width) for each in found.layers]
        return found

    def joined(self, other: _Cached) -> _Cached:
        """The rows of both, padded alike."""
        if not self.rows or not other.rows:
            return self if self.rows else other
        both = _Cached([*self.rows, *other.rows], [])
        for own, others in zip(self.layers, other.layers, strict=True):
            (keys, values), (other_keys, other_values) = _fitted(own, both.width), _fitted(others, both.width)
            both.layers.append((torch.cat([keys, other_keys]), torch.cat([values, other_values])))
        return both


class DecodeBatch:
    """The rows that are running. `step` gives each a token, and returns those that have ended."""

    def __init__(self, model: Module, device: str = "cpu") -> None:
        self._model = model
        self._device = device
        self._cached = _Cached([], [])
        self._new: list[DecodeRow] = []

    @property
    def rows(self) -> list[DecodeRow]:
        """Those that have not ended."""
        return [*self._cached.rows, *self._new]

    def add(self, rows: Iterable[DecodeRow]) -> None:
        """Let rows begin with the next step."""
        self._new += rows

    def remove(self, rows: Sequence[DecodeRow]) -> None:
        """Stop rows."""
        self._new = [row for row in self._new if row not in rows]
        self._cached = self._cached.kept([row for row in self._cached.rows if row not in rows])

    def recompute(self) -> None:
        """Forget all caches: they are computed again, by other weights perhaps, in the next step."""
        self._new, self._cached = self.rows, _Cached([], [])

    def step(self) -> list[DecodeRow]:
        """One token for each row."""
        with torch.inference_mode():
            ready = self._decode()
            for rows in _by_length(self._new):
                ready = ready.joined(self._begin(rows))
        self._new = []
        self._cached = ready.kept([row for row in ready.rows if not row.finish])
        return [row for row in ready.rows if row.finish]

    def _decode(self) -> _Cached:
        """The next token of rows that are cached."""
        rows = self._cached.rows
        if not rows:
            return self._cached
        lengths = torch.tensor([len(row.tokens) for row in rows], device=self._device)
        width = self._cached.width + 1
        mask = torch.arange(width, device=self._device) >= (width - lengths)[:, None]
        last = torch.tensor([[row.tokens[-1]] for row in rows], device=self._device)
        return self._forward(rows, last, DynamicCache(self._cached.layers), mask.long(), (lengths - 1)[:, None])

    def _begin(self, rows: list[DecodeRow]) -> _Cached:
        """The first token of new rows, all of one length."""
        ids = torch.tensor([row.tokens for row in rows], device=self._device)
        places = torch.arange(ids.shape[1], device=self._device).expand(ids.shape)
        return self._forward(rows, ids, DynamicCache(), torch.ones_like(ids), places)

    def _forward(
        self, rows: list[DecodeRow], ids: Tensor, cache: DynamicCache, mask: Tensor, places: Tensor
    ) -> _Cached:
        found = self._model(
            input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True
        )
        _draw(rows, found.logits[:, -1].float().cpu())
        layers: list[Any] = cache.layers  # of one kind in models without windows or linear attention
        return _Cached(rows, [(layer.keys, layer.values) for layer in layers])


def generate(model: Module, rows: Sequence[DecodeRow], device: str = "cpu") -> None:
    """Run rows to their ends."""
    batch = DecodeBatch(model, device)
    batch.add(rows)
    while batch.rows:
        batch.step()


def _draw(rows: Sequence[DecodeRow], logits: Tensor) -> None:
    """Choose a token for each row, by its own random numbers. Temperature 0 is the likeliest."""
    warm = torch.tensor([row.temperature or 1.0 for row in rows], dtype=torch.float64)
    sums = (logits.double() / warm[:, None]).softmax(-1).cumsum(-1)
    chances = torch.tensor([[row.chance()] for row in rows], dtype=torch.float64) * sums[:, -1:]
    drawn = torch.searchsorted(sums, chances, right=True).clamp(max=logits.shape[-1] - 1).squeeze(-1)
    greedy = torch.tensor([row.temperature == 0 for row in rows])
    tokens = torch.where(greedy, logits.argmax(-1), drawn)
    logprobs = logits.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
    for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
        row.add(token, logprob)


def _by_length(rows: Sequence[DecodeRow]) -> Iterable[list[DecodeRow]]:
    found: dict[int, list[DecodeRow]] = defaultdict(list)
    for row in rows:
        found[len(row.tokens)].append(row)
    return found.values()


def _fitted(layer: tuple[Tensor, Tensor], width: int) -> tuple[Tensor, Tensor]:
    """Keys and values with this many places: padded on the left, or without padding that nobody needs."""
    keys, values = (_widened(each, width) for each in layer)
    return keys, values


def _widened(tensor: Tensor, width: int) -> Tensor:
    more = width - tensor.shape[-2]
    return pad(tensor, (0, 0, more, 0)) if more > 0 else tensor[..., -more:, :]
