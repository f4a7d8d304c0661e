"""Engines that register and leave while a gateway runs."""

from __future__ import annotations

from collections.abc import Iterable

from steelyard.balance.route.protocol import RoutedRequest
from steelyard.live.adapters.shared import ElasticRouter
from steelyard.live.fleet import EngineFleet
from steelyard.live.upstream import Upstream


class WorkerFleet(EngineFleet):
    """A fleet that grows. An engine keeps its number for ever: requests that it has are known by it."""

    def __init__(self, engines: Iterable[str] = (), router: str = "prefix-aware", seed: int = 0) -> None:
        self._elastic = ElasticRouter(router, seed)
        super().__init__([], self._elastic)
        self._urls: list[str] = []
        self._gone: set[int] = set()
        for url in engines:
            self.add(url)

    @property
    def workers(self) -> dict[int, str]:
        """Addresses of engines that have not left, by number."""
        return {number: url for number, url in enumerate(self._urls) if number not in self._gone}

    def add(self, url: str) -> int:
        """An engine registers; one that is known stays as it is. Returns its number."""
        upstream, url = Upstream.of(url), url.rstrip("/")
        if url in self._urls:
            number = self._urls.index(url)
            if number not in self._gone:
                return number
            self._gone.discard(number)
        else:
            number = len(self._urls)
            self._urls.append(url)
            self.engines.append(upstream)
            self.up.append(False)
        self.set_up(number, True)
        return number

    def remove(self, number: int) -> None:
        """An engine leaves. It gets no more requests; those that it has go on."""
        self.set_up(number, False)
        self._gone.add(number)

    def set_up(self, engine: int, up: bool) -> None:
        if engine not in self._gone:
            super().set_up(engine, up)

    def end_session(self, session: str) -> None:
        """No more requests of this session will come."""
        self._elastic.session_ended(RoutedRequest(session, session, (), 0))
