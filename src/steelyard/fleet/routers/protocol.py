"""What every router promises. A router sees requests and what becomes of them, never the inside of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

GONE = 1 << 40  # requests on a replica that is not there: more than any other can have


@dataclass(slots=True)  # not frozen: one is made for every request, and freezing would take three times as long
class Asked:
    """What a router may know of a request. How long the answer will be is not among it, since nobody knows."""

    index: int
    session: int
    names: Sequence[int]  # of the leading blocks that others may share
    prompt: int
    priority: int = 0
    at: float = 0.0  # when it was asked
    model: str = ""


class Router(Protocol):
    """Chooses a replica for each request, in order of submission."""

    @property
    def looks_at_load(self) -> bool:
        """Whether completions change its choices."""
        ...

    @property
    def awaits_first_tokens(self) -> bool:
        """Whether it wants to be told of first tokens; one that is not told takes prompts for done when all is."""
        ...

    def available(self, replica: int, up: bool) -> None:
        """A replica has gone, and all it held with it; or it is there again. All are there to begin with."""
        ...

    def choose(self, asked: Asked) -> int:
        """The replica for a request; one at least must be there."""
        ...

    def first_token(self, asked: Asked, replica: int, at: float) -> None:
        """A request's prompt is done: its first token came at this second."""
        ...

    def ended(self, asked: Asked, replica: int) -> None:
        """A request that was sent to this replica has ended."""
        ...


class Heedless:
    """What a router is by default: nothing that happens to requests changes its mind."""

    looks_at_load = False
    awaits_first_tokens = False
    down: frozenset[int] = frozenset()  # replicas that are not there

    def available(self, replica: int, up: bool) -> None:
        self.down = self.down - {replica} if up else self.down | {replica}

    def first_token(self, asked: Asked, replica: int, at: float) -> None:
        pass

    def ended(self, asked: Asked, replica: int) -> None:
        pass


@dataclass(frozen=True)
class RouterSettings:
    """What routers may want to know besides the number of replicas."""

    block_size: int = 16  # tokens of a KV block
    cache_blocks: int | None = None  # what a replica's cache holds; None: all that was ever sent
    overlap_weight: float = 1.0  # of a block to compute against one in use
    temperature: float = 0.0  # 0: always the best
    ttft: float = 1.0  # seconds in which the first token should come
