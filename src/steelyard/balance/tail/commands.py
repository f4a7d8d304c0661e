"""Commands of tail policies about the samples of a round. The rounds turn them into commands to the driver."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.balance.commands import Cap, Reconfigure, Repack, Resume


@dataclass(frozen=True, slots=True)
class StartMore:
    """Begin ``samples`` samples of each of ``groups`` new prompts.

    The ``first`` samples of each prompt are served before all others: their lengths help to predict the rest.
    """

    groups: int
    samples: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Begin more samples, under new names, of a prompt that was deferred or has lost some."""

    group: str
    samples: int


@dataclass(frozen=True, slots=True)
class AbortRest:
    """Stop these. With ``resume`` they keep their tokens and go on in a later round."""

    trajectories: tuple[str, ...]
    resume: bool


@dataclass(frozen=True, slots=True)
class Defer:
    """These prompts will begin again in a round of their own. Their tokens so far are dropped."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Train:
    """A round is over: train on these samples, which are whole groups."""

    step: int
    groups: tuple[tuple[str, ...], ...]


TailCommand = StartMore | StartAgain | Cap | Resume | AbortRest | Defer | Repack | Reconfigure | Train
