"""Draws lengths, pauses, priorities and accepted drafts, a whole column at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard.errors import UserError, quoted, shown
from steelyard.files.reading import text_lines
from steelyard.records import Floats, Ints
from steelyard.scenario import (
    AcceptSpec,
    ChoicePriority,
    EmpiricalTokens,
    ExponentialSeconds,
    FixedPriority,
    FixedSeconds,
    FixedTokens,
    Lognormal,
    PrefixSpec,
    UniformSeconds,
    UniformTokens,
    ZipfTokens,
)
from steelyard.scenario.numbers import MOST, MOST_SECONDS

_CYCLES = 1024  # distinct draws of accepted drafts, shared by requests to bound memory; chosen
_CYCLE_STEPS = 64  # verify steps of a draw, which is then repeated; chosen

_LENGTH = re.compile("[0-9]{1,10}")
_PURPOSES = (
    "arrivals",
    "prompt",
    "output",
    "turns",
    "think",
    "user think",
    "group",
    "priority",
    "abort",
    "accept",
    "branches",
    "rounds",
    "round output",
    "tool",
    "result",
)

Tokens = FixedTokens | UniformTokens | Lognormal | ZipfTokens | EmpiricalTokens
Seconds = FixedSeconds | UniformSeconds | ExponentialSeconds | Lognormal


@dataclass
class Dice:
    """Independent random streams per purpose: changing one distribution does not change the other draws."""

    seed: int
    workload: int

    def of(self, purpose: str, *which: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.workload, _PURPOSES.index(purpose), *which])


def draw_tokens(spec: Tokens, n: int, rng: np.random.Generator, base_dir: Path) -> Ints:
    """Lengths of at least one token."""
    match spec:
        case FixedTokens():
            return np.full(n, spec.tokens, dtype=np.int64)
        case UniformTokens():
            return rng.integers(spec.min, spec.max, size=n, dtype=np.int64, endpoint=True)
        case Lognormal():
            return np.clip(np.rint(_lognormal(spec, n, rng)), 1, MOST).astype(np.int64)
        case ZipfTokens():
            lengths = np.arange(spec.min, spec.max + 1, dtype=np.int64)
            return lengths[_weighted(lengths.astype(np.float64) ** -spec.exponent, n, rng)]
        case EmpiricalTokens():
            return _empirical(spec, n, rng, base_dir)


def draw_seconds(spec: Seconds, n: int, rng: np.random.Generator) -> Floats:
    """Times of at least zero seconds."""
    match spec:
        case FixedSeconds():
            return np.full(n, spec.seconds)
        case UniformSeconds():
            return rng.uniform(spec.min, spec.max, size=n)
        case ExponentialSeconds():
            return np.minimum(rng.standard_exponential(n) * spec.mean, MOST_SECONDS)
        case Lognormal():
            return np.minimum(_lognormal(spec, n, rng), MOST_SECONDS)


def draw_priority(spec: FixedPriority | ChoicePriority, n: int, rng: np.random.Generator) -> Ints:
    """Priorities; lower is served first."""
    if isinstance(spec, FixedPriority):
        return np.full(n, spec.value, dtype=np.int64)
    weights = np.ones(len(spec.values)) if spec.weights is None else np.array(spec.weights)
    return np.array(spec.values, dtype=np.int64)[_weighted(weights, n, rng)]


def draw_group(spec: PrefixSpec, n: int, rng: np.random.Generator) -> Ints:
    """Which shared prefix each request has."""
    ranks = np.arange(1, spec.groups + 1, dtype=np.float64)
    return _weighted(ranks**-spec.zipf, n, rng)


def draw_accept(spec: AcceptSpec, n: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Accepted drafts per verify step: for shares s1 >= s2 >= ..., k or more are accepted with probability sk."""
    if spec.cycle is not None:
        return [spec.cycle] * n
    falling = np.array(spec.probabilities)
    steps = rng.random((_CYCLES, _CYCLE_STEPS))
    accepted = np.searchsorted(-falling, -steps, side="left")
    cycles = [tuple(row) for row in accepted.tolist()]
    return [cycles[i] for i in rng.integers(_CYCLES, size=n).tolist()]


def _lognormal(spec: Lognormal, n: int, rng: np.random.Generator) -> Floats:
    mu, sigma = spec.parameters()
    drawn = np.exp(mu + sigma * rng.standard_normal(n))
    return np.asarray(np.clip(drawn, spec.min or 0.0, spec.max or np.inf))


def _weighted(weights: Floats, n: int, rng: np.random.Generator) -> Ints:
    """Indices drawn in proportion to weights."""
    total = np.cumsum(weights)
    drawn = np.searchsorted(total, rng.random(n) * total[-1], side="right")
    return np.asarray(np.minimum(drawn, len(weights) - 1), dtype=np.int64)


def _empirical(spec: EmpiricalTokens, n: int, rng: np.random.Generator, base_dir: Path) -> Ints:
    if spec.histogram is not None:
        low, high = (np.array([each[i] for each in spec.histogram], dtype=np.int64) for i in (0, 1))
        chosen = _weighted(np.array([each[2] for each in spec.histogram]), n, rng)
        return rng.integers(low[chosen], high[chosen], dtype=np.int64, endpoint=True)
    if spec.values is not None:
        values = np.array(spec.values, dtype=np.int64)
    else:
        assert spec.file is not None
        values = _read_lengths(base_dir / spec.file)
    return values[rng.integers(len(values), size=n)]


def _read_lengths(path: Path) -> Ints:
    """One length per line; blank lines and lines that start with # are skipped."""
    values = []
    for number, text in text_lines(path, "a file of lengths, one to a line"):
        if text.startswith("#"):
            continue
        length = int(text) if _LENGTH.fullmatch(text) else 0
        if not 1 <= length <= MOST:
            raise UserError(
                f"{shown(path)}:{number}: must be a whole number of tokens, 1 to {MOST:,} (found {quoted(text)})"
            )
        values.append(length)
    if not values:
        raise UserError(f"{path}: holds no lengths; give one whole number per line")
    return np.array(values, dtype=np.int64)
