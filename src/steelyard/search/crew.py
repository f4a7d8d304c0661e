"""Processes that work on tasks for as long as a search lasts. One that dies is replaced, and its task done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from steelyard.errors import UserError
from steelyard.sim.workers import free_cores, keep_working


class Crew(Protocol):
    """Works on tasks, several at a time."""

    def work(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """What is found for each task, as (place of the task, what was found), in the order in which they end."""
        ...


class Alone:
    """Everything in this process."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def work(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """One task after the other."""
        for place, task in enumerate(tasks):
            yield place, self._function(task)


@contextmanager
def crew_of(function: Callable[[Any], Any], workers: int | None, ray: str | None = None) -> Iterator[Crew]:
    """A crew of so many processes, by default one per core; on a Ray cluster if its address is given."""
    if ray is not None:
        from steelyard.search.on_ray import ray_crew

        with ray_crew(function, ray, workers) as crew:
            yield crew
        return
    number = free_cores() if workers is None else workers
    if number < 2:
        yield Alone(function)
        return
    with keep_working(function, number) as crew:
        yield crew


def check_address(address: str | None) -> None:
    """Raise UserError unless an address is one that Ray takes."""
    if address is not None and not address.strip():
        raise UserError("--ray: must be `auto`, or the address of a Ray cluster such as 127.0.0.1:6379")
