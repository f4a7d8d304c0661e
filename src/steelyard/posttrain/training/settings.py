"""What one training step of GRPO or PPO does, apart from where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from steelyard.posttrain.training.efficiency import KEPT_UP
from steelyard.posttrain.training.packing import Packing

Reference = Literal["none", "resident", "offloaded"]
Dispatcher = Literal["alltoall", "deepep"]


@dataclass(frozen=True)
class TrainSettings:
    """The algorithm and the framework's switches.

    A batch is cut into ``minibatches`` with an optimiser update each, ``epochs`` times over. ``old_log_probs`` is one
    forward pass over the batch before the first update; a ``reference`` policy, a ``reward`` model and a ``critic``
    (PPO's; it is trained, too) are taken to be as large as the policy, and pass over the batch as well. An offloaded
    reference is fetched from the host for its pass. ``overlap`` hides gradient and weight exchange of data-parallel
    ranks behind arithmetic as far as there is some; ``tp_overlap`` and ``ep_overlap`` are the parts of tensor- and
    expert-parallel exchange that are hidden, which only frameworks with special kernels or schedules do. ``loss_chunk``
    is how many tokens have logits at a time. ``batch`` is the number of sequences of a step, where layouts shall be
    checked against it. ``kept_up`` is the share of the cost sources' arithmetic that training reaches; one measured
    step of a cluster tells a better one.
    """

    minibatches: int = 1
    epochs: int = 1
    old_log_probs: bool = True
    reference: Reference = "none"
    reward: bool = False
    critic: bool = False
    packing: Packing = "balanced"
    dispatcher: Dispatcher = "alltoall"
    overlap: bool = True
    tp_overlap: float = 0.0
    ep_overlap: float = 0.0
    gradient_bytes: int = 4
    loss_chunk: int | None = None
    batch: int | None = None
    kept_up: float = KEPT_UP

    @property
    def forward_passes(self) -> int:
        """Passes over the batch without gradients: old policy, reference, reward model, critic's values."""
        return self.old_log_probs + (self.reference != "none") + self.reward + self.critic

    @property
    def trained(self) -> int:
        """Models of the policy's size that are trained."""
        return 1 + self.critic

    @property
    def updates(self) -> int:
        """Optimiser updates of each trained model in a step."""
        return self.minibatches * self.epochs


def settings_refusal(settings: TrainSettings, dp: int) -> str | None:
    """Why settings cannot work with so many data-parallel ranks; None if they can."""
    if settings.minibatches < 1 or settings.epochs < 1:
        return f"minibatches={settings.minibatches}, epochs={settings.epochs}: both must be at least 1"
    for name, share in (("tp_overlap", settings.tp_overlap), ("ep_overlap", settings.ep_overlap)):
        if not 0.0 <= share <= 1.0:
            return f"{name}={share}: it is a share between 0 and 1"
    if not 0.0 < settings.kept_up <= 1.0:
        return f"kept_up={settings.kept_up}: it is a share above 0 and at most 1"
    if settings.batch is not None and settings.batch % (settings.minibatches * dp):
        return (
            f"a batch of {settings.batch} sequences cannot be divided evenly into {settings.minibatches} minibatches "
            f"on dp={dp} ranks"
        )
    return None
