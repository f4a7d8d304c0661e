"""Groups of samples in a round: who runs, who is done, who was stopped. Sums are kept, so each event costs the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from steelyard.balance.rollouts import Rollouts


@dataclass(slots=True)
class Group:
    """Samples of one prompt. Only ``size`` of them together can be trained on."""

    name: str
    size: int
    probe: str  # the sample that began first
    coming: int  # samples asked for that have not begun yet
    tokens: dict[str, int] = field(default_factory=dict)  # that each has generated in turns that are over
    running: dict[str, None] = field(default_factory=dict)
    stopping: dict[str, None] = field(default_factory=dict)  # told to stop for now, not known to have stopped
    held: dict[str, None] = field(default_factory=dict)  # stopped for now
    done: dict[str, None] = field(default_factory=dict)  # in order of ending

    @property
    def complete(self) -> bool:
        return len(self.done) >= self.size

    @property
    def lacking(self) -> int:
        """Samples too few, even if all that have not ended will."""
        return max(0, self.size - self.coming - len(self.tokens))

    @property
    def unfinished(self) -> tuple[str, ...]:
        return (*self.running, *self.stopping, *self.held)

    @property
    def longest(self) -> int:
        """Tokens of the longest sample that has ended; 0 while none has."""
        return max((self.tokens[name] for name in self.done), default=0)

    def take_out(self, name: str) -> None:
        """Whatever it was doing, it is not any more."""
        for state in (self.running, self.stopping, self.held):
            state.pop(name, None)


@dataclass(slots=True)
class Round:
    """One training step's rollout. Its groups are also those that earlier rounds have left over."""

    step: int
    at: float
    wanted: int  # groups
    size: int  # samples of a group
    rollouts: Rollouts  # the picture of the engines
    groups: dict[str, Group]
    homes: dict[str, Group]  # of every sample
    complete: dict[str, None]  # groups, in order of completion
    deferred: list[str]  # prompts that wait for a round of their own, in order of coming
    among: frozenset[str] = frozenset()  # groups that it may train on; any, if none is named
    ready: int = 0  # of these, those that are complete
    unbegun: int = 0  # samples asked for that have not begun yet
    running: int = 0
    repack_at: int = 0  # samples left at which those are gathered on few replicas, by a policy that does so

    def may_take(self, name: str) -> bool:
        """Whether a group is for this round."""
        return not self.among or name in self.among

    @property
    def idle(self) -> bool:
        """Nothing will happen any more unless somebody is resumed or started."""
        return not self.running and not self.unbegun
