"""A crew on a Ray cluster. All calls of Ray that a search makes are here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from steelyard.errors import UserError

_TRIES = 3  # of a task whose worker or node was lost


class RayCrew:
    """Tasks as Ray tasks, a few more under way than there are CPUs."""

    def __init__(self, ray: Any, function: Callable[[Any], Any], at_once: int) -> None:
        self._ray, self._at_once = ray, at_once

        def work(task: Any) -> Any:
            return function(task)

        self._remote = ray.remote(num_cpus=1, max_retries=_TRIES)(work)  # which takes functions only, not partials

    def work(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """What is found for each task, the first to end first."""
        todo, places = iter(enumerate(tasks)), dict[Any, int]()
        for _ in range(self._at_once):
            self._hand_out(todo, places)
        while places:
            (ready, *_), _ = self._ray.wait(list(places))
            place = places.pop(ready)
            self._hand_out(todo, places)
            try:
                yield place, self._ray.get(ready)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, UserError) else error from None
            except self._ray.exceptions.RayError as error:
                raise UserError(f"--ray: a task was lost {_TRIES} times: {str(error).splitlines()[0]}") from None

    def _hand_out(self, todo: Iterator[tuple[int, Any]], places: dict[Any, int]) -> None:
        for place, task in todo:
            places[self._remote.remote(task)] = place
            return


@contextmanager
def ray_crew(function: Callable[[Any], Any], address: str, workers: int | None) -> Iterator[RayCrew]:
    """Workers of a cluster. ``auto`` is the cluster that runs on this machine, or a local one for this search."""
    try:
        import ray
    except ImportError:
        raise UserError("--ray: Ray is not installed; `pip install steelyard[live]` brings it") from None
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        try:
            ray.init(address=address, **quiet)
        except ConnectionError:
            if address != "auto":
                raise
            ray.init(num_cpus=workers, include_dashboard=False, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"--ray {address}: no Ray cluster answers there: {str(error).splitlines()[0]}") from None
    try:
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        cpus = int(resources.get("CPU", 1))
        yield RayCrew(ray, function, workers or cpus)
    finally:
        ray.shutdown()
