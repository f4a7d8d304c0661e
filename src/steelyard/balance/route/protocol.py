"""The interface of request routers. A router sees requests and the loads of replicas, not the state of engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)  # not frozen: one is made for every request, and freezing would take three times as long
class RoutedRequest:
    """What a router knows of a request. The output length is not included."""

    id: int | str  # unique among unfinished requests
    session: int | str
    names: Sequence[int | str]  # of the leading blocks of its prompt, which others may share
    prompt: int
    priority: int = 0
    at: float = 0.0  # when it was sent
    model: str = ""
    turn: int = 0  # earlier requests of its session, if the driver counts them


class Router(Protocol):
    """Chooses a replica for each request, in the order in which they come."""

    @property
    def looks_at_load(self) -> bool:
        """Whether completions change its choices."""
        ...

    @property
    def awaits_first_tokens(self) -> bool:
        """Whether it needs `first_token`. Without these calls it assumes that a prompt lasts until the request ends."""
        ...

    @property
    def keeps_sessions(self) -> bool:
        """Whether a session stays on the replica of its first request while that replica is available."""
        ...

    def available(self, replica: int, up: bool) -> None:
        """A replica has come up, or has gone with its cache."""
        ...

    def set_load(self, replica: int, requests: int) -> None:
        """A replica has ``requests`` unfinished requests."""
        ...

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        """The replica for a request. At least one must be available.

        ``home`` is the available replica that has its session's context cached, if known.
        """
        ...

    def first_token(self, request: RoutedRequest, replica: int, at: float) -> None:
        """The first token of a request came at this second."""
        ...

    def ended(self, request: RoutedRequest, replica: int) -> None:
        """A request that was sent to this replica has ended."""
        ...

    def session_ended(self, request: RoutedRequest) -> None:
        """No more requests of this session will come."""
        ...


class BaseRouter:
    """Defaults of a router: it only remembers which replicas are down."""

    looks_at_load: bool = False
    awaits_first_tokens: bool = False
    keeps_sessions: bool = False

    def __init__(self) -> None:
        self.down: set[int] = set()

    def available(self, replica: int, up: bool) -> None:
        if up:
            self.down.discard(replica)
        else:
            self.down.add(replica)

    def set_load(self, replica: int, requests: int) -> None:
        pass

    def first_token(self, request: RoutedRequest, replica: int, at: float) -> None:
        pass

    def ended(self, request: RoutedRequest, replica: int) -> None:
        pass

    def session_ended(self, request: RoutedRequest) -> None:
        pass
