"""One data-parallel replica of the model that is trained, with its optimiser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import pad_sequence

from steelyard.live.train.objective import divergence, token_losses
from steelyard.live.train.samples import TrainingRow
from steelyard.live.train.settings import TrainerSettings
from steelyard.live.train.weights import load_model, model_of, named

_MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW remembers of each parameter


@dataclass
class Computed:
    """Sums over the rows of a share, and the log-probabilities of their generated tokens."""

    logprobs: list[Tensor]  # by row
    tokens: int = 0
    loss: float = 0.0
    truncated: int = 0
    clipped: int = 0


class TrainingReplica:
    """Gradients add up until `apply`, which makes an update. They lie in one flat tensor, so that exchanging them is
    one call."""

    def __init__(self, config: dict[str, Any], settings: TrainerSettings, model: Module | None = None) -> None:
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.settings = settings
        self.model = (model_of(config) if model is None else model).to(settings.device)
        self._reference = load_model(settings.model).to(settings.device) if settings.kl else None
        self._parameters = dict(self.model.named_parameters())
        self.gradient = torch.zeros(sum(each.numel() for each in self._parameters.values()), device=settings.device)
        places = torch.split(self.gradient, [each.numel() for each in self._parameters.values()])
        for parameter, place in zip(self._parameters.values(), places, strict=True):
            parameter.grad = place.view_as(parameter)
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )

    # Computing

    def accumulate(self, rows: Sequence[TrainingRow]) -> Computed:
        """Add the gradient of the summed losses of all generated tokens."""
        total = Computed([torch.empty(0)] * len(rows))
        for places in _batches([row.length for row in rows], self.settings.micro_tokens):
            batch = [rows[place] for place in places]
            now, loss = self._loss(batch, total)
            torch.autograd.backward([loss])
            counts = [int(row.behaviour.numel()) for row in batch]
            for place, found in zip(places, torch.split(now.detach().cpu(), counts), strict=True):
                total.logprobs[place] = found
        return total

    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """The log-probability of each token but the first, given those before it."""
        ids = torch.tensor([list(tokens)], device=self.settings.device)
        with torch.no_grad():
            found: list[float] = _logprobs(self.model, ids)[0].tolist()
        return found

    def _loss(self, rows: Sequence[TrainingRow], total: Computed) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the generated tokens of all rows, one after the other, and their summed loss."""
        settings, device = self.settings, self.settings.device
        ids = pad_sequence([row.tokens.long() for row in rows], batch_first=True).to(device)
        generated = pad_sequence([row.generated[1:] for row in rows], batch_first=True).to(device)
        now = _logprobs(self.model, ids)[generated]
        earlier = [row.proximal for row in rows if row.proximal is not None]
        found = token_losses(
            now,
            torch.cat(earlier).to(device) if earlier else now.detach(),
            torch.cat([row.behaviour for row in rows]).to(device),
            torch.cat([torch.full_like(row.behaviour, row.advantage) for row in rows]).to(device),
            settings.clip,
            settings.most_weight,
        )
        loss = found.losses.sum()
        if self._reference is not None:
            with torch.no_grad():
                reference = _logprobs(self._reference, ids)[generated]
            loss = loss + settings.kl * divergence(now, reference).sum()
        total.tokens += int(now.numel())
        total.loss += float(loss.detach())
        total.truncated += int(found.truncated.sum())
        total.clipped += int(found.clipped.sum())
        return now, loss

    # Updating

    def scale(self, tokens: int) -> tuple[float, float]:
        """What makes the summed gradient a mean over tokens that is not too long; and the norm of that mean."""
        norm = float(self.gradient.norm()) / max(1, tokens)
        return min(1.0, self.settings.longest_gradient / max(norm, 1e-12)) / max(1, tokens), norm

    def apply(self) -> None:
        """Make an update with the gradient as it is, and begin with none again."""
        self._optimizer.step()
        self.gradient.zero_()

    # State

    def state(self) -> dict[str, Tensor]:
        """A copy of weights and optimiser state, on the host."""
        found = {f"model.{name}": tensor for name, tensor in named(self.model).items()}
        for name, parameter in self._parameters.items():
            memory = self._optimizer.state.get(parameter, {})
            found |= {f"{moment}.{name}": memory[moment] for moment in _MOMENTS if moment in memory}
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in found.items()}

    def load(self, state: dict[str, Tensor], updates: int) -> None:
        """Take over a `state` after this many updates."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(state[f"model.{name}"])
                if updates:
                    memory = {moment: state[f"{moment}.{name}"].to(parameter.device) for moment in _MOMENTS}
                    self._optimizer.state[parameter] = {"step": torch.tensor(float(updates)), **memory}
        self.gradient.zero_()

    def digest(self) -> int:
        """A checksum of the weights: equal for equal weights."""
        found = 0
        for tensor in named(self.model).values():
            found = crc32(tensor.cpu().contiguous().view(torch.uint8).flatten().numpy().data, found)
        return found


def _logprobs(model: Module, ids: Tensor) -> Tensor:
    """Of each token but the first of each row. Padding is on the right, so that causal attention never sees it."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits.float()
    chosen = logits.gather(-1, ids[:, 1:, None]).squeeze(-1)
    found: Tensor = chosen - logits.logsumexp(-1)
    return found


def _batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Rows of similar lengths, as many at a time as fit into so many padded tokens; at least one."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
