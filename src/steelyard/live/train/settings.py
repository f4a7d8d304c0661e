"""What a training group is told once, and what it tells about each part of a step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from steelyard.errors import UserError, quoted

PublishedType = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TrainerSettings:
    """Of a run. Times to wait are those of the hybrid pool's `Patience`, where it has them."""

    model: Path  # a Hugging Face style folder: the weights that training begins with, and the reference of `kl`
    folder: Path  # where checkpoints and published weights go
    device: str = "cpu"  # or cuda
    learning_rate: float = 1e-6  # usual for GRPO on models of billions of parameters; small ones take far more
    weight_decay: float = 0.0
    longest_gradient: float = 1.0  # longer ones are scaled down to this norm
    clip: float = 0.2  # how far a token's ratio may go in one step, as in PPO
    most_weight: float = 2.0  # at which importance weights are truncated; chosen
    kl: float = 0.0  # weight of the divergence from the reference
    passes: int = 1  # updates from the samples of a step
    micro_tokens: int = 16_384  # of a batch that is computed at once, with padding
    seed: int = 0
    threads: int = 0  # of torch in each process; 0 leaves that to torch
    gradient_seconds: float = 120.0  # for a lane's gradient, once the core has all of its own
    fetch_seconds: float = 600.0  # for a lane to get state
    core_seconds: float = 1800.0  # for a core rank to answer
    catch_up: int = 8  # updates by which a lane may be behind; chosen, each is a gradient in memory
    kept: int = 3  # checkpoints, and published versions
    published: PublishedType = "float32"

    def __post_init__(self) -> None:
        positive = {
            "learning_rate": self.learning_rate,
            "longest_gradient": self.longest_gradient,
            "clip": self.clip,
            "most_weight": self.most_weight,
        }
        for name, found in positive.items():
            if not found > 0:
                raise UserError(f"TrainerSettings.{name}: must be more than 0 (found {quoted(found)})")
        least = {
            "passes": (self.passes, 1),
            "micro_tokens": (self.micro_tokens, 1),
            "catch_up": (self.catch_up, 1),
            "kept": (self.kept, 1),
            "weight_decay": (self.weight_decay, 0),
            "kl": (self.kl, 0),
            "threads": (self.threads, 0),
        }
        for name, (found, bound) in least.items():
            if not found >= bound:
                raise UserError(f"TrainerSettings.{name}: must be at least {bound} (found {quoted(found)})")

    def told(self) -> dict[str, Any]:
        """As JSON has it, for workers."""
        return {**asdict(self), "model": str(self.model), "folder": str(self.folder)}

    @classmethod
    def heard(cls, told: dict[str, Any]) -> TrainerSettings:
        """What `told` said."""
        known = {each.name: told[each.name] for each in fields(cls)}
        return cls(**{**known, "model": Path(known["model"]), "folder": Path(known["folder"])})


@dataclass(frozen=True)
class TrainReport:
    """What one call of `TrainingGroup.train` did. Shares and means are over generated tokens."""

    step: int
    version: int  # of the weights after it
    updated: bool  # whether this part was the step's last
    seconds: float
    samples: int
    tokens: int  # generated ones, which count
    loss: float
    mean_reward: float
    norm: float  # of the gradient, before it is scaled; 0 without an update
    truncated: float  # share of tokens whose importance weight was truncated
    clipped: float  # share of tokens whose ratio was beyond the clip, over all passes
    staleness: tuple[tuple[int, int], ...]  # (versions behind, tokens)
    lanes: tuple[str, ...]  # that computed a share
    redone: int  # samples that lanes had and did not compute
    lane_tokens: tuple[tuple[str, int], ...] = ()  # generated tokens of each lane's share
