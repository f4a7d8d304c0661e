"""What a tail policy wants done with the samples of a round. The rounds turn it into commands to the driver."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.balance.commands import Cap, Repack, Resume


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
class AbortRest:
    """Stop these; with ``resume`` what they have is kept, and they go on in a later round."""

    trajectories: tuple[str, ...]
    resume: bool


@dataclass(frozen=True, slots=True)
class Defer:
    """These prompts will be started again in a round of their own; what was generated for them is of no use."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Train:
    """A round is over: train on these samples, whole groups all of them."""

    step: int
    groups: tuple[tuple[str, ...], ...]


TailCommand = StartMore | StartAgain | Cap | Resume | AbortRest | Defer | Repack | Train
