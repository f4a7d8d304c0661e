"""The core's commands. A driver carries them out in order and reports the outcome as events.

Commands that come with every turn are not frozen, as events are not (`events.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Cache = Literal["keep", "offload", "drop"]


@dataclass(slots=True)
class Place:
    """Run a trajectory's next turn on a replica. Engines that rank requests serve lower ``priority`` first.

    ``source`` is the replica where its tokens are cached, on the GPU or in the host's memory; None if they are not
    cached. If that is another replica, they move (``keep``), which the driver reports as ``Moved``, or are computed
    again (``drop``). It is never ``offload``. All reports about this turn carry its ``epoch``.
    """

    trajectory: str
    replica: int
    priority: int = 0
    source: int | None = None
    cache: Cache = "keep"
    epoch: int = 0


@dataclass(slots=True)
class Park:
    """What to do with a trajectory's cached tokens while its tool runs."""

    trajectory: str
    cache: Cache


RolloutCommand = Place | Park


@dataclass(frozen=True, slots=True)
class Start:
    """Begin samples of each of these groups with the current weights; each is reported as `Begun`.

    A group is a prompt, named by its index among all prompts of the run. ``step`` is the training step whose policy
    answers it. The ``first`` samples of each group are served before all others: their lengths predict the rest.
    """

    groups: tuple[str, ...]
    samples: int
    step: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Cap:
    """From now on a trajectory pauses once it has generated this many tokens since it began or was resumed."""

    tokens: int | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop these for now. They keep their tokens and caches. Running tools go on."""

    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a stopped or paused trajectory. Engines that rank requests serve lower ``priority`` first.

    ``left`` is the number of remaining tokens that its group predicts, if known.
    """

    trajectory: str
    priority: int = 0
    left: int | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop these for good, or forget them if they have ended. They will not be trained on."""

    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrajectoryMove:
    """A trajectory and its cache go from one replica to another."""

    trajectory: str
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Repack:
    """Gather the remaining trajectories. Replicas in ``freed`` are empty then, and closed until `Reopen`."""

    moves: tuple[TrajectoryMove, ...]
    freed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Replicas ``of`` give their GPUs to one replica, whose number is new or that of an earlier merge of the same."""

    number: int
    of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Replicas are merged into wide ones. Those merged are reported as down at once, and wide ones as up when they run.
    Until all of them are up, nothing is placed. `Reopen` undoes it."""

    merges: tuple[Merge, ...]


@dataclass(frozen=True, slots=True)
class Reopen:
    """Closed replicas take trajectories again. Merged ones get their GPUs back from the wide ones, which are down."""


@dataclass(frozen=True, slots=True)
class TrainOn:
    """Samples of a training step, in whole groups. Parts are numbered; the ``last`` one ends in an update."""

    step: int
    part: int
    trajectories: tuple[str, ...]
    last: bool


RoundCommand = Start | Cap | Pause | Resume | Abort | Repack | Reconfigure | Reopen | TrainOn
