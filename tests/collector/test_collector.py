"""The garbage collector around servers."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from steelyard import collector
from steelyard.collector import collector_off, collector_on_new


class Knot:
    """An object that only the collector can free, and that says when it is."""

    def __init__(self, freed: list[str], name: str) -> None:
        self.itself = self
        self._freed, self._name = freed, name

    def __del__(self) -> None:
        self._freed.append(self._name)


@pytest.fixture
def by_hand() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("by_hand")
def test_only_what_is_new_is_looked_through() -> None:
    freed: list[str] = []
    Knot(freed, "before")
    with collector_on_new():
        Knot(freed, "inside")
        gc.collect()
        assert freed == ["inside"]
    gc.collect()
    assert freed == ["inside", "before"]


@pytest.mark.usefixtures("by_hand")
def test_an_error_ends_it_too() -> None:
    freed: list[str] = []
    Knot(freed, "before")
    with pytest.raises(RuntimeError), collector_on_new():
        raise RuntimeError
    gc.collect()
    assert freed == ["before"]


def test_cycles_of_runs_are_freed_as_often_as_it_takes_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []
    monkeypatch.setattr(collector, "_ended", time.process_time())
    monkeypatch.setattr(collector, "_took", 1000.0)
    with collector_off():
        Knot(freed, "run")
    assert not freed, "the last collection took long, and was just now"
    monkeypatch.setattr(collector, "_took", 0.0)
    with collector_off():
        pass
    assert freed == ["run"] and collector._took > 0
