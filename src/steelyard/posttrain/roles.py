"""The role of each GPU over time.

A GPU has at most one role, unless stages are co-located and share all GPUs. While it changes roles it has none.
Summaries and figures count GPU time by these entries.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from steelyard.engine import BriefLog
from steelyard.posttrain.rollout import RolloutStage

Role = Literal["rollout", "training"]
Gpus = tuple[int, ...]


@dataclass(eq=False)
class Tenure:
    """GPUs in one role for some time: those of an engine, or of the training job."""

    role: Role
    gpus: Gpus
    since: float
    until: float = inf
    log: BriefLog | None = None  # of the engine


class Roles:
    """Adds and removes roles. Only this class starts and stops engines of the rollout stage."""

    def __init__(self, stage: RolloutStage, gpus: int, node: int, shared: bool) -> None:
        self.gpus = gpus
        self.node = node
        self.shared = shared
        self.tenures: list[Tenure] = []
        self.engines: dict[int, Tenure] = {}
        self.training: Tenure | None = None
        self.known: set[Gpus] = set()  # GPUs with a sleeping engine, which wakes faster than a new one starts
        self._latest: dict[tuple[str, int], Tenure] = {}  # by GPU, and by role if roles share GPUs
        self._stage = stage
        self._started = 0

    def start_engine(self, gpus: Gpus, at: float, number: int | None = None) -> int:
        """Start an engine on these GPUs. Returns its number, which is a new one unless it is given."""
        number = self._started if number is None else number
        self._started = max(self._started, number + 1)
        self._stage.add(number, len(gpus), at)
        self.engines[number] = self._enter(Tenure("rollout", gpus, at, log=self._stage.replicas.logs[number]))
        self.known.add(gpus)
        return number

    def stop_engine(self, number: int, at: float) -> Gpus:
        """Stop an engine. Its trajectories go elsewhere. Returns its GPUs, which are free."""
        tenure = self.engines.pop(number)
        tenure.until = at
        self._stage.remove(number, at)
        return tenure.gpus

    def train_on(self, gpus: Gpus, at: float) -> None:
        """The training job has exactly these GPUs from now on."""
        if self.training is not None:
            self.training.until = min(self.training.until, at)
        self.training = self._enter(Tenure("training", gpus, at))

    def stop_training(self, at: float) -> None:
        """The training job has no GPUs from now on."""
        assert self.training is not None, "it has never begun"
        self.training.until = at

    def _enter(self, tenure: Tenure) -> Tenure:
        role = tenure.role if self.shared else ""
        before = {gpu: self._latest.get((role, gpu)) for gpu in tenure.gpus}
        taken = [gpu for gpu, last in before.items() if last is not None and last.until > tenure.since]
        assert not taken, f"GPUs {sorted(taken)} have a role already"
        assert len(before) == len(tenure.gpus) and max(tenure.gpus) < self.gpus, "there are no such GPUs"
        self._latest |= {(role, gpu): tenure for gpu in tenure.gpus}
        self.tenures.append(tenure)
        return tenure


def first_places(degrees: Sequence[int], training: int, gpus: int, shared: bool) -> tuple[list[Gpus], Gpus]:
    """GPUs of each engine, large engines first so that none crosses a node. The training job has the last GPUs."""
    places: dict[int, Gpus] = {}
    used = 0
    for index in sorted(range(len(degrees)), key=lambda i: (-degrees[i], i)):
        places[index] = tuple(range(used, used + degrees[index]))
        used += degrees[index]
    job = tuple(range(gpus - training, gpus))
    assert shared or used <= gpus - training, "more GPUs than there are"
    return [places[index] for index in range(len(degrees))], job


def merged_blocks(places: Sequence[Gpus], tp: int, node: int) -> list[tuple[int, ...]]:
    """Engines, by number, that together have ``tp`` GPUs of one node. Those that find no others stay as they are."""
    blocks: list[tuple[int, ...]] = []
    open_: dict[int, list[int]] = {}
    for number in sorted(range(len(places)), key=lambda each: places[each]):
        gpus = places[number]
        if len(gpus) >= tp:
            continue
        block = open_.setdefault(gpus[0] // node, [])
        if sum(len(places[each]) for each in block) + len(gpus) > tp:
            block.clear()
        block.append(number)
        if sum(len(places[each]) for each in block) == tp:
            blocks.append(tuple(block))
            block.clear()
    return blocks


def new_places(
    degrees: Sequence[int], training: int, had: Gpus, free: Collection[int], node: int
) -> tuple[list[Gpus], Gpus] | None:
    """GPUs for new engines, each inside a node, and for a training job, which keeps as many of its GPUs as possible.

    None if some engine would cross nodes.
    """
    left, places = set(free), dict[int, Gpus]()
    for index in sorted(range(len(degrees)), key=lambda i: (-degrees[i], i)):
        block = _block(degrees[index], left, had, node)
        if block is None:
            return None
        places[index] = block
        left -= set(block)
    job = sorted(left, key=lambda gpu: (gpu not in had, -gpu))[:training]
    assert len(job) == training, "more GPUs than there are"
    return [places[index] for index in range(len(degrees))], tuple(sorted(job))


def _block(degree: int, left: Collection[int], had: Gpus, node: int) -> Gpus | None:
    """GPUs in the node with room that takes fewest from training, then in the fullest."""
    by_node: dict[int, list[int]] = {}
    for gpu in sorted(left, key=lambda gpu: (gpu in had, gpu)):
        by_node.setdefault(gpu // node, []).append(gpu)
    fitting = [(each[:degree], len(each)) for each in by_node.values() if len(each) >= degree]
    if not fitting:
        return None
    block, _ = min(fitting, key=lambda found: (len(set(found[0]) & set(had)), found[1], found[0]))
    return tuple(sorted(block))
