"""What a driver reports to the core: a simulator in virtual time, or a live cluster. Times are the driver's own.

Every event names the epoch of what it is about, so that the core can tell a report that is late or repeated from one
that counts. A trajectory's epoch is that of its last `Place`, and one more whenever the driver resumes it or sends it
elsewhere; a replica's counts how often it has come up.

Events of every turn are not frozen, since that would make each take several times as long to create.
"""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.records import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class ReplicaUp:
    """An engine can take trajectories: its tensor-parallel degree, requests it runs at once, tokens its cache holds."""

    at: float
    replica: int
    tp: int
    seats: int
    tokens: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaDown:
    """An engine is gone, and with it the caches of all trajectories on it; those wait to be placed again."""

    at: float
    replica: int
    epoch: int = 0


@dataclass(slots=True)
class Begun:
    """A trajectory wants its first turn. ``version`` is that of the weights it begins with.

    One that was stopped and goes on has had some ``turns``, and ``fresh`` tokens of the present one. Its ``epoch`` is
    above all that it had before. ``group`` names the samples that are trained on together; without one it is not
    trained on. ``truth`` is for bounds: estimators that are told the answer.
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

    Until then it holds a seat there, and its cache on the other. A driver that does not report it is taken to have
    moved it by the turn's end.
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
    """A trajectory was stopped for good, on command or by its client."""

    at: float
    trajectory: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Paused:
    """A trajectory stops for now, within a turn or before it; ``generated`` counts all its tokens. It keeps its place
    and its cache, as one whose tool is running does."""

    at: float
    trajectory: str
    epoch: int
    generated: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """A paused trajectory wants the rest of its turn; ``left`` is what is known of the tokens still to come."""

    at: float
    trajectory: str
    epoch: int
    left: int | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """A trajectory was sent to a replica by something other than the router: its turn goes on there, or, while its
    tool runs or it has paused, its cache goes there."""

    at: float
    trajectory: str
    epoch: int
    replica: int


RolloutEvent = ReplicaUp | ReplicaDown | Begun | Moved | Called | Returned | Ended | Aborted | Paused | Resumed | Sent


@dataclass(frozen=True, slots=True)
class Generated:
    """The tokens that a trajectory has in all by weights of one version. Reported before weights change, and before
    the trajectory ends."""

    at: float
    trajectory: str
    version: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WeightsPublished:
    """Engines have the weights of a version: what may begin with them begins."""

    at: float
    version: int


@dataclass(frozen=True, slots=True)
class TrainerReady:
    """The training job wants the samples of a step, in one part or in several."""

    at: float
    step: int


@dataclass(frozen=True, slots=True)
class PartTrained:
    """The training job is through with one part of a step's samples, and wants the next."""

    at: float
    step: int
    part: int


@dataclass(frozen=True, slots=True)
class StepTrained:
    """A step's update is done; its weights, of version ``step + 1``, are on their way to the engines. What engines
    generate from here on is by these."""

    at: float
    step: int


RoundEvent = WeightsPublished | TrainerReady | PartTrained | StepTrained | Generated
