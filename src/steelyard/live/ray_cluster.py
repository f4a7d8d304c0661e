"""All that is asked of Ray: it starts each part of a run as an actor, and starts again what dies.

Parts talk to each other by themselves. Ray addresses them, keeps them alive and ends them.
"""

from __future__ import annotations

import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import ray

from steelyard.errors import UserError
from steelyard.files.writing import appending
from steelyard.live.addresses import HOST, LOCAL, PartHost
from steelyard.live.operate import ask_controller
from steelyard.live.process import main
from steelyard.live.runs import LiveRun, is_over
from steelyard.live.supervise import CONTROLLER, FOLLOW_SECONDS, Restarted

_PAUSE_SECONDS = 1.0  # until a part that failed is started again; chosen


class PartActor:
    """A part of a run. Its process may die: Ray starts another, perhaps on another machine, and calls `run` again."""

    def run(self, folder: str, name: str, alone: bool) -> None:
        """Run the part to its end, on a machine alone or among others. What goes wrong is in its log."""
        try:
            main(Path(folder), name, LOCAL if alone else PartHost.of(_own_address()))
        except Exception:
            with appending(Path(folder) / f"{name}.log") as log:
                traceback.print_exc(file=log)
            raise


def _own_address() -> str:
    """The address of this node, as Ray knows it."""
    own, cluster = ray.get_runtime_context().get_node_id(), cast(Any, ray)
    found: str = next(each["NodeManagerAddress"] for each in cluster.nodes() if each["NodeID"] == own)
    return found


def run_on_ray(run: LiveRun, address: str | None, restarted: Restarted = lambda name, code: None) -> None:
    """Run the parts of a run as actors, on a new local cluster or on one that is there, until the run is over."""
    # our parts of a cluster of this machine alone listen to nobody else; Ray's own processes do, and ask for its token
    own: dict[str, Any] = {} if address else {"_node_ip_address": HOST}
    ray.init(address, include_dashboard=False, log_to_driver=False, configure_logging=False, **own)
    actors = _Actors(run, restarted, alone=address is None)
    try:
        actors.run()
    finally:
        with suppress(UserError):  # it saves, so that the next one starts at once
            ask_controller(run.address("operator"), {"what": "release"})
        actors.end()
        ray.shutdown()


class _Actors:
    """The actors of a run by the names of its parts. A planner may start and stop engines."""

    def __init__(self, run: LiveRun, restarted: Restarted, alone: bool) -> None:
        self._run, self._restarted, self._alone = run, restarted, alone
        self._actor_of: Any = ray.remote(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD"
        )(PartActor)
        self._actors: dict[str, Any] = {}
        self._running: dict[Any, str] = {}  # calls of `run`

    def run(self) -> None:
        """Run until the controller says that the run is over."""
        self._follow()
        while CONTROLLER in self._running.values():
            done, _ = ray.wait(list(self._running), num_returns=1, timeout=FOLLOW_SECONDS)
            for each in done:
                name = self._running.pop(each)
                if name in self._actors and not is_over(self._run):
                    self._running[self._again(name, each)] = name
            self._follow()

    def end(self) -> None:
        """End all parts."""
        for actor in self._actors.values():
            with suppress(Exception):
                ray.kill(actor)

    def _follow(self) -> None:
        """Start parts that are wanted, and end those that are not any more."""
        wanted = self._run.parts
        for name in [each for each in wanted if each not in self._actors]:
            self._actors[name] = self._actor_of.options(name=f"{self._run.folder.name}/{name}").remote()
            self._running[self._begin(name)] = name
        for name in [each for each in self._actors if each not in wanted]:
            ray.kill(self._actors.pop(name))

    def _begin(self, name: str) -> Any:
        return self._actors[name].run.remote(str(self._run.folder.absolute()), name, self._alone)

    def _again(self, name: str, ended: Any) -> Any:
        """Start a part again that has ended before the run was over, in a new process."""
        code = 0
        try:
            ray.get(ended)
        except ray.exceptions.RayTaskError:
            code = 1
            time.sleep(_PAUSE_SECONDS)
        self._restarted(name, code)
        ray.kill(self._actors[name], no_restart=False)
        return self._begin(name)
