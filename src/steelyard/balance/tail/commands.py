"""What a tail policy wants done with the samples of a round. Events tell what came of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartMore:
    """Begin so many samples of each of so many prompts that have not been asked for yet.

    Of each prompt ``first`` samples are to be served before all others: their lengths tell something about the rest.
    """

    groups: int
    samples: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Begin further samples, under new names, of a prompt that was deferred or has lost some."""

    group: str
    samples: int


@dataclass(frozen=True, slots=True)
class Cap:
    """From now on a trajectory pauses when it has generated so many tokens since it began or was resumed."""

    tokens: int | None


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a trajectory that was stopped or has paused. Engines that rank serve lower ``priority`` first.

    ``left`` is what its group lets expect of it still, in tokens, where that is known.
    """

    trajectory: str
    priority: int = 0
    left: int | None = None


@dataclass(frozen=True, slots=True)
class AbortRest:
    """Stop these; with ``resume`` what they have is kept, and they go on in a later round."""

    trajectories: tuple[str, ...]
    resume: bool


@dataclass(frozen=True, slots=True)
class Defer:
    """These prompts will be started again in a round of their own; what was generated for them is of no use."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A trajectory and its cache go from one replica to another."""

    trajectory: str
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Repack:
    """Gather those who are left; replicas in ``freed`` are empty then, and free for something else."""

    moves: tuple[Move, ...]
    freed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Train:
    """A round is over: train on these samples, whole groups all of them."""

    step: int
    groups: tuple[tuple[str, ...], ...]


TailCommand = StartMore | StartAgain | Cap | Resume | AbortRest | Defer | Repack | Train
