"""What a profile of another system has: each setting, where it is from, which are tuned, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

POLICIES = (
    *("mode", "router", "estimator", "planner", "pool", "tail"),
    *("streaming", "weighed", "late", "concurrency"),
)
"""What every profile says: the fields of a choice."""
MOST_TRIALS = 8
"""Combinations of open values at most, so that tuning stays a small part of a comparison."""

Open = tuple[tuple[str, tuple[Any, ...]], ...]
"""Settings that a source leaves open, each with the values to try."""


@dataclass(frozen=True)
class Setting:
    """Values and their source. Of several values the fastest is taken, for each scenario."""

    values: tuple[Any, ...]
    source: str

    @property
    def open(self) -> bool:
        """Whether the source leaves it open."""
        return len(self.values) > 1


def given(value: Any, source: str) -> Setting:
    """What the source says."""
    return Setting((value,), source)


def tried(values: Sequence[Any], source: str) -> Setting:
    """What the source leaves open; the source says that there is a choice."""
    return Setting(tuple(values), source)


@dataclass(frozen=True)
class Code:
    """A public repository as of one commit."""

    repository: str
    commit: str

    def at(self, path: str) -> str:
        """A file of it."""
        return f"[{path}](https://github.com/{self.repository}/blob/{self.commit}/{path})"


def paper(number: str, where: str) -> str:
    """A part of a paper on arXiv."""
    return f"[arXiv {number}](https://arxiv.org/abs/{number}), {where}"


def thread(repository: str, kind: str, number: int) -> str:
    """An issue or a pull request."""
    return f"[{repository} #{number}](https://github.com/{repository}/{kind}/{number})"


@dataclass(frozen=True)
class Profile:
    """A system as its authors run it.

    ``settings`` has all of `POLICIES`, and keys of the scenario such as ``tail.factor``. ``left_out`` says what the
    system has and we do not simulate; ``kinder``, where it does better here than by its own code.
    """

    name: str
    about: str
    settings: Mapping[str, Setting]
    left_out: str = ""
    kinder: str = ""
    claim: str = ""  # what its authors say its own mechanism gains

    @cached_property
    def first(self) -> dict[str, Any]:
        """One value of each setting: of open ones the first."""
        return {key: setting.values[0] for key, setting in self.settings.items()}

    @cached_property
    def open(self) -> Open:
        """What is tuned."""
        return tuple((key, setting.values) for key, setting in self.settings.items() if setting.open)

    @property
    def trials(self) -> int:
        """Combinations of open values."""
        return prod(len(values) for _, values in self.open)


def combinations(left: Open) -> list[dict[str, Any]]:
    """All combinations of open values, the first values first."""
    keys = [key for key, _ in left]
    return [dict(zip(keys, values, strict=True)) for values in product(*(values for _, values in left))]
