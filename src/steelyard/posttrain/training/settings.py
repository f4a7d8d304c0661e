"""The algorithm of a training step (GRPO or PPO), independent of its layout."""

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

    - A batch is split into ``minibatches`` with an optimiser update each, ``epochs`` times.
    - ``old_log_probs`` is one forward pass over the batch before the first update. A ``reference`` policy, a ``reward``
      model and PPO's ``critic``, which is trained too, also pass over the batch. They are assumed to be as large as the
      policy. An offloaded reference is fetched from the host for its pass.
    - ``overlap`` hides exchanges of data-parallel ranks behind arithmetic as far as possible. ``tp_overlap`` and
      ``ep_overlap`` are the hidden shares of tensor- and expert-parallel exchanges, which need special kernels or
      schedules.
    - ``loss_chunk`` is the number of tokens that have logits at a time.
    - ``batch`` is the number of sequences of a step, if layouts must divide it.
    - ``kept_up`` is the share of the cost sources' arithmetic that training reaches. One measured step of a cluster
      gives a better value.
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
    """Why settings cannot work with ``dp`` data-parallel ranks; None if they can."""
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
