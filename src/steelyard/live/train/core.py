"""The core ranks: processes that form one torch.distributed group for the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from threading import Condition

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore  # where their types are; also in torch.distributed

from steelyard.live.train.answers import computed_from
from steelyard.live.train.frames import Channel, ChannelFailed, Frame, Stamp
from steelyard.live.train.replica import Computed, TrainingReplica
from steelyard.live.train.samples import TrainingRow, packed
from steelyard.live.train.settings import TrainerSettings

_ROOM = 1 << 26  # bytes of an answer: log-probabilities of 16 million tokens


class CoreLost(RuntimeError):
    """A core rank is gone or does not answer. The group has to be started again from its last checkpoint."""


class CoreRanks:
    """Rank 0's view of ranks 1 and up. Questions go to each over its connection; gradients go by torch.distributed."""

    def __init__(self, settings: TrainerSettings, ranks: int, host: str) -> None:
        self._settings = settings
        self.ranks = ranks
        self._channels: dict[int, Channel] = {}
        self._arrived = Condition()
        self._store: TCPStore | None = None
        if ranks > 1:
            self._store = TCPStore(host, 0, ranks, is_master=True, wait_for_workers=False)

    def arrive(self, name: str, channel: Channel) -> None:
        """A rank has connected."""
        with self._arrived:
            missing = {str(rank): rank for rank in range(1, self.ranks) if rank not in self._channels}
            if name not in missing:
                channel.close()
                return
            self._channels[missing[name]] = channel
            self._arrived.notify_all()

    def start(self, frame: Frame, state: Frame, seconds: float) -> None:
        """Wait for all ranks, form the group, and give everybody the state."""
        if self._store is None:
            return
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self._channels) == self.ranks - 1, seconds):
                missing = sorted(set(range(1, self.ranks)) - set(self._channels))
                raise CoreLost(f"rank {missing[0]} has not connected within {seconds:g} s")
        meeting = {"rank": 0, "ranks": self.ranks, "port": self._store.port}
        for rank in self._channels:
            self._send(rank, Frame(frame.kind, facts={**frame.facts, "meeting": {**meeting, "rank": rank}}))
        form_group(self._store, 0, self.ranks, self._settings)
        self._tell(state)
        for rank in self._channels:
            self._hear(rank, "fetched", state.stamp)

    def ask(self, stamp: Stamp, shares: Sequence[Sequence[TrainingRow]]) -> None:
        """Have ranks 1 and up compute their shares. Gradients stay where they are."""
        for rank, rows in zip(sorted(self._channels), shares, strict=True):
            self._send(rank, Frame("compute", stamp, tensors=packed(rows)))

    def answers(self, stamp: Stamp, shares: Sequence[Sequence[TrainingRow]]) -> list[Computed]:
        """What came out, by rank."""
        ranks = sorted(self._channels)
        return [
            self._computed(rank, self._hear(rank, "computed", stamp), rows)
            for rank, rows in zip(ranks, shares, strict=True)
        ]

    def update(self, stamp: Stamp, replica: TrainingReplica, tokens: int) -> float:
        """Sum the gradients of all ranks and scale them, on all ranks alike. Returns the norm of their mean."""
        self._tell(Frame("update", stamp))
        try:
            if self._store is not None:
                dist.all_reduce(replica.gradient)
            scale, norm = replica.scale(tokens)
            share_scale(replica.gradient, scale, self.ranks)
        except RuntimeError as problem:
            raise CoreLost(f"core ranks cannot exchange gradients: {problem}") from None
        return norm

    def updated(self, stamp: Stamp) -> None:
        """Wait until all ranks have made the update."""
        for rank in self._channels:
            self._hear(rank, "applied", stamp)

    def close(self) -> None:
        """End all ranks."""
        for channel in self._channels.values():
            channel.close()
        if self._store is not None and dist.is_initialized():
            dist.destroy_process_group()

    def _computed(self, rank: int, answer: Frame, rows: Sequence[TrainingRow]) -> Computed:
        try:
            return computed_from(answer, rows)
        except ChannelFailed as problem:
            raise CoreLost(f"rank {rank}: {problem}") from None

    def _tell(self, frame: Frame) -> None:
        for rank in self._channels:
            self._send(rank, frame)

    def _send(self, rank: int, frame: Frame) -> None:
        try:
            self._channels[rank].send(frame, self._settings.core_seconds)
        except ChannelFailed as problem:
            raise CoreLost(f"rank {rank}: {problem}") from None

    def _hear(self, rank: int, wanted: str, stamp: Stamp) -> Frame:
        try:
            answer = self._channels[rank].receive(self._settings.core_seconds, _ROOM)
        except ChannelFailed as problem:
            raise CoreLost(f"rank {rank}: {problem}") from None
        if (answer.kind, answer.stamp) != (wanted, stamp):
            raise CoreLost(f"rank {rank}: answered {answer.kind} of {answer.stamp}, not {wanted} of {stamp}")
        return answer


def form_group(store: Store, rank: int, ranks: int, settings: TrainerSettings) -> None:
    """Join the core's group: NCCL between GPUs, gloo between CPUs."""
    backend = "nccl" if settings.device.startswith("cuda") else "gloo"
    limit = timedelta(seconds=settings.core_seconds)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=limit)


def share_scale(gradient: Tensor, scale: float, ranks: int) -> None:
    """Multiply a gradient by what rank 0 says, so that all ranks have the same bits."""
    factor = torch.tensor([scale], device=gradient.device)
    if ranks > 1:
        dist.broadcast(factor, src=0)
    gradient.mul_(factor)
