"""A process of a training group: a core rank, or a hybrid lane.

It does what rank 0 says, one thing after the other, and ends when the connection does.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from steelyard.errors import UserError
from steelyard.live.engines.leash import signal_at_end_of_parent
from steelyard.live.train.answers import facts_of
from steelyard.live.train.core import form_group, share_scale
from steelyard.live.train.door import SECRET, Role, knock
from steelyard.live.train.frames import Channel, ChannelFailed, Frame, Stamp
from steelyard.live.train.replica import TrainingReplica
from steelyard.live.train.samples import unpacked
from steelyard.live.train.settings import TrainerSettings
from steelyard.live.train.weights import size_of

_FOR_EVER = 365 * 86400.0  # seconds to wait for the next question; a connection that breaks ends it
_WELCOME_SECONDS = 600.0  # until all core ranks are there; chosen
_ANSWER_SECONDS = 600.0  # chosen
_STATE_SHARES = 3  # weights and the two moments of the optimiser
_ROOM = 1 << 30  # bytes of a frame beside state or gradient: samples of 100 million tokens


class TrainingWorker:
    """Answers rank 0. A lane has a replica only while it takes part in training."""

    def __init__(self, channel: Channel, settings: TrainerSettings, config: dict[str, Any], ranks: int) -> None:
        self._channel = channel
        self._settings = settings
        self._config = config
        self._ranks = ranks  # of the core's group; 0 in a lane
        self._replica: TrainingReplica | None = None
        self._stamp = Stamp()  # of its state
        self._most = _STATE_SHARES * size_of(config) + _ROOM

    def run(self) -> None:
        """Answer until the connection ends."""
        while True:
            frame = self._channel.receive(_FOR_EVER, self._most)
            self._channel.send(self._answer(frame), _ANSWER_SECONDS)

    def _answer(self, frame: Frame) -> Frame:
        if frame.kind == "state":
            return self._load(frame)
        if frame.kind == "leave":
            return self._leave(frame)
        if self._replica is None or not self._is_present(frame.stamp):
            raise ChannelFailed(f"asked for {frame.kind} of {frame.stamp}, has {self._stamp}")
        if frame.kind == "compute":
            return self._compute(self._replica, frame)
        if frame.kind == "update":
            return self._update(self._replica, frame)
        raise ChannelFailed(f"cannot answer {frame.kind}")

    def _is_present(self, stamp: Stamp) -> bool:
        return (stamp.epoch, stamp.updates) == (self._stamp.epoch, self._stamp.updates)

    def _load(self, frame: Frame) -> Frame:
        self._replica = self._replica or TrainingReplica(self._config, self._settings)
        self._replica.load(frame.tensors, frame.stamp.updates)
        self._stamp = frame.stamp
        return Frame("fetched", frame.stamp)

    def _compute(self, replica: TrainingReplica, frame: Frame) -> Frame:
        """A lane's gradient goes with its answer. That of a core rank stays until the update."""
        rows = unpacked(frame.tensors)
        sums, logprobs = facts_of(replica.accumulate(rows))
        if self._ranks:
            return Frame("computed", frame.stamp, sums, {"logprobs": logprobs})
        tensors = {"gradient": replica.gradient.to("cpu", copy=True)} if rows else {}
        replica.gradient.zero_()
        return Frame("gradient", frame.stamp, sums, {**tensors, "logprobs": logprobs})

    def _update(self, replica: TrainingReplica, frame: Frame) -> Frame:
        if self._ranks:
            dist.all_reduce(replica.gradient)
            share_scale(replica.gradient, 0.0, self._ranks)
        else:
            replica.gradient.copy_(frame.tensors["gradient"])
        replica.apply()
        self._stamp = replace(self._stamp, updates=self._stamp.updates + 1)
        digest = {"digest": replica.digest()} if frame.facts.get("digest") else {}
        return Frame("applied", frame.stamp, digest)

    def _leave(self, frame: Frame) -> Frame:
        """Free the memory, for an engine."""
        self._replica = None
        if self._settings.device.startswith("cuda"):
            torch.cuda.empty_cache()
        return Frame("left", frame.stamp)


def work(address: str, secret: str, role: Role, name: str) -> None:
    """Be a worker of the group at HOST:PORT, until that ends."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"{address}: must be HOST:PORT of a training group")
    channel = knock(host, int(port), secret, role, name)
    welcome = channel.receive(_WELCOME_SECONDS)
    settings, config = TrainerSettings.heard(welcome.facts["settings"]), welcome.facts["config"]
    ranks = 0
    if role == "rank":
        meeting = welcome.facts["meeting"]
        ranks = int(meeting["ranks"])
        store = TCPStore(host, int(meeting["port"]), ranks, is_master=False)
        form_group(store, int(meeting["rank"]), ranks, settings)
    TrainingWorker(channel, settings, config, ranks).run()


def main(words: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser("python -m steelyard.live.train.worker", description=__doc__)
    parser.add_argument("address", help="HOST:PORT of the training group")
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("--rank", type=int, help="be this core rank")
    one.add_argument("--lane", help="be a hybrid lane of this name")
    parser.add_argument("--with-parent", action="store_true", help="be killed when the parent process ends")
    given = parser.parse_args(words)
    if given.with_parent:
        signal_at_end_of_parent(signal.SIGKILL)
    role: Role = "lane" if given.rank is None else "rank"
    try:
        work(given.address, os.environ.get(SECRET, ""), role, str(given.rank if given.lane is None else given.lane))
    except (ChannelFailed, UserError) as problem:
        print(f"training {role}: {problem}", file=sys.stderr)
    return 1  # it never ends by itself


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
