"""All that is asked of Ray: it starts each part of a run as an actor, and starts again what dies.

Parts talk to each other by themselves. Ray places them, keeps them alive and ends them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from steelyard.live.process import main
from steelyard.live.runs import LiveRun
from steelyard.live.supervise import CONTROLLER, FOLLOW_SECONDS


class PartActor:
    """A part of a run. Its process may die: Ray starts another one and calls `run` again."""

    def run(self, folder: str, name: str) -> None:
        """Run the part to its end."""
        main(Path(folder), name)


def run_on_ray(run: LiveRun, address: str | None) -> None:
    """Run the parts of a run as actors, on a new local cluster or on one that is there, until the run is over."""
    # a cluster of this machine alone listens to nobody else
    own: dict[str, Any] = {} if address else {"_node_ip_address": "127.0.0.1"}
    ray.init(address, include_dashboard=False, log_to_driver=False, configure_logging=False, **own)
    actor_of: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(PartActor)
    actors: dict[str, Any] = {}
    running: dict[str, Any] = {}
    try:
        while True:
            for name in [each for each in run.parts if each not in actors]:
                actors[name] = actor_of.options(name=f"{run.folder.name}/{name}").remote()
                running[name] = actors[name].run.remote(str(run.folder.absolute()), name)
            for name in [each for each in actors if each not in run.parts]:  # a planner has stopped an engine
                ray.kill(actors.pop(name))
            if ray.wait([running[CONTROLLER]], timeout=FOLLOW_SECONDS)[0]:
                ray.get(running[CONTROLLER])
                return
    finally:
        for actor in actors.values():
            with suppress(Exception):
                ray.kill(actor)
        ray.shutdown()
