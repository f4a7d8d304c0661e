"""Which trajectories begin when, and which of them a training step takes."""

from steelyard.balance.rounds.batches import BatchRounds
from steelyard.balance.rounds.protocol import Rounds, RoundSettings
from steelyard.balance.rounds.tail_rounds import TailRounds

__all__ = ["BatchRounds", "RoundSettings", "Rounds", "TailRounds"]
