"""Carries out a change of the rollout's layout inside a step: narrow engines are merged into wide ones, and back.

- The engines that are merged stop at once. Trajectories keep their tokens, but not those of a step under way.
- GPUs have no role until the wide engines have started and fetched their shards of the weights over the node's links.
- Caches stay where they are until their trajectories are placed. Then they move to the new engine or are computed
  again, whichever is faster. Those of one engine share its links.
- After the round the engines change back in the same way, at the earliest when the next weights are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from steelyard.balance.commands import Merge, Reconfigure, Reopen
from steelyard.posttrain.attempt import StoppedEngine
from steelyard.posttrain.record import LayoutChange, LoopRecord
from steelyard.posttrain.roles import Gpus, Roles
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.wide import change_seconds, node_rate
from steelyard.scenario.tails import ReconfigureSpec


class Reconfiguration:
    """Changes the engines of a stage between the scenario's layout and the wide one."""

    def __init__(
        self, setup: PosttrainSetup, spec: ReconfigureSpec, stage: RolloutStage, roles: Roles, record: LoopRecord
    ) -> None:
        self._setup, self._spec = setup, spec
        self._stage, self._roles, self._record = stage, roles, record
        self._narrow: dict[int, Gpus] = {}  # engines that were merged, and their GPUs
        self._wide: tuple[int, ...] = ()
        self._changes = 0
        stage.driver.on(Reconfigure, self._merge)
        stage.driver.on(Reopen, self._split)

    def _merge(self, command: Reconfigure, at: float) -> None:
        places = {number: self._roles.engines[number].gpus for merge in command.merges for number in merge.of}
        self._narrow, self._wide = places, tuple(merge.number for merge in command.merges)
        ready = at + self._seconds(self._spec.tp)
        self._record.layouts.append(LayoutChange(at, ready, len(self._stage.running), self._spec.tp))
        for number in places:
            self._stop(number, at)
        self._stage.later(ready, partial(self._widen, command.merges, self._change()))

    def _widen(self, merges: Sequence[Merge], change: int, at: float) -> None:
        if change != self._changes:  # the round is over
            return
        for merge in merges:
            gpus = tuple(sorted(gpu for number in merge.of for gpu in self._narrow[number]))
            self._stage.moves.nodes[merge.number] = gpus[0] // self._roles.node
            self._roles.start_engine(gpus, at, merge.number)

    def _split(self, command: Reopen, at: float) -> None:
        for number in self._wide:
            if number in self._roles.engines:
                self._roles.stop_engine(number, at)
        degrees = {len(gpus) for gpus in self._narrow.values()}
        ready = at + max(self._seconds(tp) for tp in degrees)
        self._stage.later(ready, partial(self._narrow_again, self._change()))

    def _narrow_again(self, change: int, at: float) -> None:
        if at < self._stage.ready:  # weights are being sent
            self._stage.later(self._stage.ready, partial(self._narrow_again, change))
            return
        assert change == self._changes, "engines are merged only once all are up"
        for number, gpus in self._narrow.items():
            self._roles.start_engine(gpus, at, number)

    def _stop(self, number: int, at: float) -> None:
        """Stop an engine, and keep the caches of the trajectories on it."""
        here = [(each, each.request) for each in self._stage.running.values() if each.replica == number]
        stopped = self._stopped(self._roles.stop_engine(number, at))
        for attempt, request in here:
            whole = attempt.in_tool if request is None else request.outputs > 0
            if whole and attempt.cache != "drop":
                attempt.kept, attempt.kept_by = attempt.context, stopped

    def _stopped(self, gpus: Gpus) -> StoppedEngine:
        topology, kind = self._setup.topology, self._setup.kinds[len(gpus)]
        shard = kind.kv_bytes / len(gpus)
        inside, outside = node_rate(topology, self._spec.tp), topology.nic.rate
        return StoppedEngine(gpus[0] // topology.gpus_per_node, shard / inside, shard / outside)

    def _seconds(self, tp: int) -> float:
        return change_seconds(self._setup.model, self._setup.topology, tp, self._spec)

    def _change(self) -> int:
        """The number of a change that begins; those before it are out of date."""
        self._changes += 1
        return self._changes
