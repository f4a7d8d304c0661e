"""Which engines a run wants, on which GPUs, and which GPUs train: the target that the run is brought to.

The controller's store has it, so that the next controller has the same target. A copy in the run's folder tells those
who start engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steelyard.balance.encoding import decode, encode
from steelyard.balance.plan import Plan
from steelyard.files.finding import is_file
from steelyard.files.jsontext import json_object
from steelyard.files.writing import write_text
from steelyard.posttrain.roles import Gpus
from steelyard.posttrain.switch_plan import RolesNow, SwitchPlan
from steelyard.records.jsontext import compact

ENGINES_FILE = "engines.json"  # in a run's folder


@dataclass(frozen=True, slots=True)
class WantedEngine:
    """An engine that a run wants. It is not used before the second ``since`` of the run."""

    number: int
    port: int
    gpus: tuple[int, ...]
    since: float = 0.0

    @property
    def tp(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True, slots=True)
class Roster:
    """Engines, the training job's GPUs and plan, and the change that led to them."""

    engines: tuple[WantedEngine, ...]
    training: tuple[int, ...]
    plan: Plan
    known: tuple[tuple[int, ...], ...]  # GPUs that have had an engine, which sleeps there
    started: int  # engines so far
    step: int = -1  # after which it was changed to
    rolled_back: bool = False  # it is what was before that change
    began: float = 0.0  # when that change began
    laid: float = 0.0  # when the training job goes on

    @classmethod
    def first(cls, places: Sequence[Gpus], training: Gpus, ports: Sequence[int], plan: Plan) -> Roster:
        """That of a run which begins."""
        engines = tuple(WantedEngine(n, port, gpus) for n, (gpus, port) in enumerate(zip(places, ports, strict=True)))
        return cls(engines, training, plan, tuple(places), len(engines))

    def roles(self, gpus: int, node: int) -> RolesNow:
        """As changes of plans are worked out from."""
        engines = {each.number: each.gpus for each in self.engines}
        known: AbstractSet[Gpus] = set(self.known)
        return RolesNow(gpus, node, engines, self.training, known)

    def changed(self, plan: Plan, change: SwitchPlan, step: int, at: float, ports: Sequence[int]) -> Roster:
        """The roster after a change that begins now."""
        stay = tuple(each for each in self.engines if each.number in change.stay)
        new = tuple(
            WantedEngine(self.started + place, port, gpus, at + seconds)
            for place, (port, (gpus, seconds)) in enumerate(zip(ports, change.new.items(), strict=True))
        )
        known = tuple(dict.fromkeys((*self.known, *(each.gpus for each in new))))
        started = self.started + len(new)
        return Roster((*stay, *new), change.job, plan, known, started, step, False, at, at + change.laid)

    def as_rolled_back(self) -> Roster:
        return replace(self, rolled_back=True)

    def to_json(self) -> str:
        """As the store has it."""
        return compact(encode(self))

    def write(self, folder: Path) -> None:
        """Tell those who start engines."""
        rows = {str(each.number): {"tp": each.tp, "port": each.port} for each in self.engines}
        write_text(folder / ENGINES_FILE, compact({"engines": rows}))


def roster_of(row: Mapping[str, Any], where: str) -> Roster:
    """A roster of a store."""
    found: Roster = decode(Roster, row, where)
    return found


def wanted_engines(folder: Path) -> dict[int, tuple[int, int]] | None:
    """Degree and port of each engine that the run of a folder wants now; None if they have never changed."""
    path = folder / ENGINES_FILE
    if not is_file(path):
        return None
    rows = json_object(path, "the engines of a run")["engines"]
    return {int(number): (row["tp"], row["port"]) for number, row in rows.items()}
