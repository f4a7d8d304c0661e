"""What a driver reports to the core: a simulator in virtual time, or a live cluster. Times are the driver's own.

Every event carries an epoch, so that the core can tell a late or repeated report from one that counts. A trajectory's
epoch is that of its last `Place`, plus one whenever the driver resumes it or sends it elsewhere. A replica's epoch
counts how often it has come up.

Events that come with every turn are not frozen, since frozen ones take several times as long to create.
"""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.records import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class ReplicaUp:
    """An engine is up: its tensor-parallel degree, the requests it runs at once, the tokens its cache holds."""

    at: float
    replica: int
    tp: int
    seats: int
    tokens: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaDown:
    """An engine is down. The caches on it are lost, and its trajectories wait to be placed again."""

    at: float
    replica: int
    epoch: int = 0


@dataclass(slots=True)
class Begun:
    """A trajectory wants its first turn. ``version`` is that of the weights that it begins with.

    A trajectory that was stopped and goes on has had some ``turns``, and ``fresh`` tokens of the current one. Its
    ``epoch`` is above all that it had before. ``group`` names the samples that are trained on together; without a group
    it is not trained on. ``truth`` is for bounds: estimators that are given the answer.
    """

    at: float
    trajectory: str
    prompt: str
    prompt_tokens: int
    version: int = 0
    turns: tuple[Turn, ...] = ()
    fresh: int = 0
    epoch: int = 0
    group: str = ""
    truth: Trajectory | None = None


@dataclass(slots=True)
class Moved:
    """The cached tokens of a trajectory have arrived on the replica it was placed on: its turn starts.

    Until then it holds a seat there, and its cache on the source. If a driver does not report it, the move counts as
    done by the turn's end.
    """

    at: float
    trajectory: str
    epoch: int


@dataclass(slots=True)
class Called:
    """A turn is over, and its tool is running."""

    at: float
    trajectory: str
    epoch: int
    generated: int


@dataclass(slots=True)
class Returned:
    """A tool has returned: the trajectory wants its next turn."""

    at: float
    trajectory: str
    epoch: int
    turn: Turn


@dataclass(slots=True)
class Ended:
    """A trajectory is done; ``turn`` is its last."""

    at: float
    trajectory: str
    epoch: int
    turn: Turn


@dataclass(frozen=True, slots=True)
class Aborted:
    """A trajectory was stopped for good, by a command or by its client."""

    at: float
    trajectory: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Paused:
    """A trajectory stops for now, within a turn or before it. ``generated`` counts all its tokens. It keeps its replica
    and its cache, as while a tool runs."""

    at: float
    trajectory: str
    epoch: int
    generated: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """A paused trajectory wants the rest of its turn. ``left`` is the prediction of its remaining tokens."""

    at: float
    trajectory: str
    epoch: int
    left: int | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """A trajectory was sent to a replica, not by the router. Its turn goes on there; while its tool runs or it has
    paused, only its cache goes there."""

    at: float
    trajectory: str
    epoch: int
    replica: int


RolloutEvent = ReplicaUp | ReplicaDown | Begun | Moved | Called | Returned | Ended | Aborted | Paused | Resumed | Sent


@dataclass(frozen=True, slots=True)
class Generated:
    """The number of a trajectory's tokens that weights of one version have made. Reported before weights change and
    before the trajectory ends."""

    at: float
    trajectory: str
    version: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WeightsPublished:
    """Engines have the weights of a version. Trajectories that may begin with them begin."""

    at: float
    version: int


@dataclass(frozen=True, slots=True)
class TrainerReady:
    """The training job wants the samples of a step, in one part or in several."""

    at: float
    step: int


@dataclass(frozen=True, slots=True)
class PartTrained:
    """The training job has finished one part of a step's samples and wants the next."""

    at: float
    step: int
    part: int


@dataclass(frozen=True, slots=True)
class StepTrained:
    """A step's update is done. Its weights, of version ``step + 1``, are on their way to the engines, which generate
    with them from here on."""

    at: float
    step: int


RoundEvent = WeightsPublished | TrainerReady | PartTrained | StepTrained | Generated
