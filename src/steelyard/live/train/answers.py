"""What a worker answers about the rows it has computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from steelyard.live.train.frames import ChannelFailed, Frame
from steelyard.live.train.replica import Computed
from steelyard.live.train.samples import TrainingRow


def facts_of(computed: Computed) -> tuple[dict[str, Any], Tensor]:
    """Sums and log-probabilities, for a frame."""
    sums = {
        "tokens": computed.tokens,
        "loss": computed.loss,
        "truncated": computed.truncated,
        "clipped": computed.clipped,
    }
    return sums, torch.cat([torch.empty(0), *computed.logprobs])


def computed_from(answer: Frame, rows: Sequence[TrainingRow]) -> Computed:
    """What an answer says about the rows that were asked for."""
    logprobs = answer.tensors.get("logprobs")
    counts = [int(row.behaviour.numel()) for row in rows]
    facts = answer.facts
    try:
        found = Computed([], int(facts["tokens"]), float(facts["loss"]), int(facts["truncated"]), int(facts["clipped"]))
    except (KeyError, TypeError, ValueError) as problem:
        raise ChannelFailed(f"an incomplete answer: {problem}") from None
    if logprobs is None or not is_vector(logprobs, sum(counts)) or found.tokens != sum(counts):
        raise ChannelFailed(f"an answer about other rows: {found.tokens} tokens; must be {sum(counts)}")
    found.logprobs.extend(torch.split(logprobs, counts) if counts else ())
    return found


def is_vector(tensor: Tensor, size: int) -> bool:
    """Whether a tensor is so many finite numbers in a row."""
    return tensor.shape == (size,) and tensor.is_floating_point() and bool(tensor.isfinite().all())
