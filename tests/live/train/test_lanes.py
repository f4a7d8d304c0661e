"""Lanes that die, hang or answer wrongly: the step goes on, and comes to what it would have come to without them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
import torch

from steelyard.live.train.door import SECRET, knock
from steelyard.live.train.frames import Channel, ChannelFailed, Frame
from steelyard.live.train.lane import LaneState
from steelyard.live.train.replica import TrainingReplica
from steelyard.live.train.settings import TrainReport
from steelyard.live.train.weights import size_of
from steelyard.live.train.worker import TrainingWorker
from support.trainers import PATIENCE, Running, distance, running, samples_of, settings_of, trained

SAME = 1e-4  # see test_group.py
STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lanes")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, torch.Tensor]:
    return trained(settings_of(folder, "alone"), STEPS)


def _finish(found: Running, step: int) -> None:
    for number in range(step, STEPS):
        found.group.train(number, samples_of(number), last=True)


def _in_thread(call: Callable[[], TrainReport]) -> tuple[Thread, list[TrainReport]]:
    results: list[TrainReport] = []
    thread = Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def test_killed_while_active(folder: Path, alone: dict[str, torch.Tensor]) -> None:
    with running(settings_of(folder, "active")) as found:
        process = found.start("lane", "a")
        step = found.make_active("a", epoch=1, step=0)
        process.send_signal(signal.SIGSTOP)  # so that it is killed with work to do
        thread, results = _in_thread(lambda: found.group.train(step, samples_of(step), last=True))
        time.sleep(0.2)
        assert thread.is_alive()
        process.kill()
        thread.join(PATIENCE)
        assert results[0].redone > 0 and results[0].lanes == ()
        assert found.group.lanes()["a"].state is LaneState.GONE
        _finish(found, step + 1)
        assert distance(alone, found.weights()) < SAME


def test_killed_while_joining_and_hung_while_active(folder: Path, alone: dict[str, torch.Tensor]) -> None:
    settings = settings_of(folder, "joining", gradient_seconds=1.0)
    with running(settings) as found:
        first, second = found.start("lane", "a"), found.start("lane", "b")
        found.wait("a", LaneState.IDLE)
        first.send_signal(signal.SIGSTOP)
        found.group.join("a", 1)
        found.wait("a", LaneState.FETCHING)
        found.group.train(0, samples_of(0), last=True)  # does not wait for it
        first.kill()
        found.wait("a", LaneState.GONE)
        step = found.make_active("b", epoch=1, step=1)
        second.send_signal(signal.SIGSTOP)
        report = found.group.train(step, samples_of(step), last=True)
        assert report.redone > 0
        assert "gradient took more than 1 s" in found.group.lanes()["b"].reason
        _finish(found, step + 1)
        assert distance(alone, found.weights()) < SAME


def test_one_that_is_slow_to_fetch_catches_up(folder: Path, alone: dict[str, torch.Tensor]) -> None:
    with running(settings_of(folder, "slow")) as found:
        process = found.start("lane", "a")
        found.wait("a", LaneState.IDLE)
        process.send_signal(signal.SIGSTOP)
        found.group.join("a", 1)
        found.wait("a", LaneState.FETCHING)
        for step in range(2):
            found.group.train(step, samples_of(step), last=True)
        process.send_signal(signal.SIGCONT)
        found.wait("a", LaneState.SYNCING)
        report = found.group.lanes()["a"]
        assert (report.epoch, report.step, report.version) == (1, 2, 2)
        found.group.train(2, samples_of(2), last=True)
        found.wait("a", LaneState.READY)
        report = found.group.lanes()["a"]
        assert (report.step, report.version) == (2, 2)
        assert found.group.activate("a")
        assert found.group.train(3, samples_of(3), last=True).lanes == ("a",)
        assert distance(alone, found.weights()) < SAME


def test_one_that_is_too_far_behind_is_dropped(folder: Path) -> None:
    with running(settings_of(folder, "behind", catch_up=1)) as found:
        lane = _Scripted(found, "a")
        found.group.join("a", 1)
        found.wait("a", LaneState.FETCHING)
        lane.receive()
        for step in range(2):
            found.group.train(step, samples_of(step), last=True)
        found.wait("a", LaneState.GONE)
        assert "more than 1 updates behind" in found.group.lanes()["a"].reason


def test_leaves_and_joins_again(folder: Path, alone: dict[str, torch.Tensor]) -> None:
    with running(settings_of(folder, "again")) as found:
        found.group.join("a", 1)  # before it is there
        assert found.group.lanes()["a"].state is LaneState.REQUESTED
        found.start_thread("a")
        found.wait("a", LaneState.SYNCING)
        found.group.train(0, samples_of(0), last=True)
        found.wait("a", LaneState.READY)
        assert found.group.activate("a")
        assert found.group.train(1, samples_of(1), last=True).lanes == ("a",)
        found.group.leave("a")
        found.wait("a", LaneState.IDLE)
        assert found.group.train(2, samples_of(2), last=True).lanes == ()
        found.group.join("a", 1)  # told twice
        assert found.group.lanes()["a"].state is LaneState.IDLE
        found.group.join("a", 2)
        found.wait("a", LaneState.SYNCING)
        assert (found.group.lanes()["a"].epoch, found.group.lanes()["a"].version) == (2, 3)
        found.group.train(3, samples_of(3), last=True)
        assert distance(alone, found.weights()) < SAME


def test_activation_waits_for_the_next_step(folder: Path) -> None:
    with running(settings_of(folder, "barrier")) as found:
        found.start_thread("a")
        found.wait("a", LaneState.IDLE)
        found.group.join("a", 1)
        found.wait("a", LaneState.SYNCING)
        found.group.train(0, samples_of(0), last=True)
        found.wait("a", LaneState.READY)
        samples = samples_of(1)
        found.group.train(1, samples[:4], last=False)
        assert found.group.activate("a")
        assert found.group.train(1, samples[4:], last=True).lanes == ()
        assert found.group.train(2, samples_of(2), last=True).lanes == ("a",)


def test_reports_tell_the_whole_way(folder: Path) -> None:
    with running(settings_of(folder, "way")) as found:
        found.start_thread("a")
        step = found.make_active("a", epoch=7, step=0)
        found.group.train(step, samples_of(step), last=True)
        found.group.drop("a", "no reason")
        states: list[LaneState] = []
        while not states or states[-1] is not LaneState.GONE:
            report = found.group.reports.get(timeout=PATIENCE)
            states.append(report.state)
        assert states == [
            LaneState.IDLE,
            LaneState.FETCHING,
            LaneState.SYNCING,
            LaneState.READY,
            LaneState.ACTIVE,
            LaneState.GONE,
        ]
        assert (report.epoch, report.reason) == (7, "no reason")


class _Scripted:
    """A lane in the hands of a test: it gets frames, and answers as it is told."""

    def __init__(self, found: Running, name: str) -> None:
        group = found.group
        host, _, port = group.address.rpartition(":")
        self.channel: Channel = knock(host, int(port), group.secret, "lane", name)
        welcome = self.channel.receive(PATIENCE)
        self._most = 4 * size_of(welcome.facts["config"]) + (1 << 20)
        self.worker = TrainingWorker(self.channel, group.settings, welcome.facts["config"], ranks=0)
        found.wait(name, LaneState.IDLE)

    def receive(self) -> Frame:
        return self.channel.receive(PATIENCE, self._most)

    def answer(self, change: Callable[[Frame], Frame] = lambda frame: frame) -> str:
        """Answer the next frame, perhaps wrongly. Returns its kind."""
        frame = self.receive()
        self.channel.send(change(self.worker._answer(frame)), PATIENCE)
        return frame.kind

    def until_active(self, found: Running, epoch: int, step: int) -> int:
        """Join as a good lane does."""
        found.group.join("a", epoch)
        assert self.answer() == "state"
        found.wait("a", LaneState.SYNCING)
        thread, _ = _in_thread(lambda: found.group.train(step, samples_of(step), last=True))
        assert [self.answer(), self.answer()] == ["compute", "update"]
        thread.join(PATIENCE)
        found.wait("a", LaneState.READY)
        assert found.group.activate("a")
        return step + 1


def _without_gradient(frame: Frame) -> Frame:
    return replace(frame, tensors={"logprobs": frame.tensors["logprobs"]})


def _with_gradient(frame: Frame, gradient: torch.Tensor) -> Frame:
    return replace(frame, tensors={"gradient": gradient, "logprobs": frame.tensors["logprobs"]})


WRONG: dict[str, Callable[[Frame], Frame]] = {
    "an old epoch": lambda frame: replace(frame, stamp=replace(frame.stamp, epoch=frame.stamp.epoch - 1)),
    "another step": lambda frame: replace(frame, stamp=replace(frame.stamp, step=frame.stamp.step - 1)),
    "another version": lambda frame: replace(frame, stamp=replace(frame.stamp, version=9)),
    "another part": lambda frame: replace(frame, stamp=replace(frame.stamp, part=9)),
    "another kind": lambda frame: replace(frame, kind="applied"),
    "no gradient": _without_gradient,
    "a short gradient": lambda frame: _with_gradient(frame, frame.tensors["gradient"][1:]),
    "a gradient of another shape": lambda frame: _with_gradient(frame, frame.tensors["gradient"].view(1, -1)),
    "a gradient of integers": lambda frame: _with_gradient(frame, frame.tensors["gradient"].int()),
    "a gradient that is not finite": lambda frame: _with_gradient(frame, frame.tensors["gradient"] / 0),
    "fewer tokens": lambda frame: replace(frame, facts={**frame.facts, "tokens": 1}),
    "no sums": lambda frame: replace(frame, facts={}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_answers_count_for_nothing(folder: Path, alone: dict[str, torch.Tensor], wrong: str) -> None:
    with running(settings_of(folder, wrong)) as found:
        lane = _Scripted(found, "a")
        step = lane.until_active(found, epoch=4, step=0)
        thread, results = _in_thread(lambda: found.group.train(step, samples_of(step), last=True))
        assert lane.answer(WRONG[wrong]) == "compute"
        thread.join(PATIENCE)
        assert results[0].redone > 0 and results[0].lanes == ()
        assert found.group.lanes()["a"].state is LaneState.GONE
        _finish(found, step + 1)
        assert distance(alone, found.weights()) < SAME


def test_a_late_gradient_finds_nobody(folder: Path, alone: dict[str, torch.Tensor]) -> None:
    """A lane that was given up for lost answers when its step is over, and joins again in a new epoch."""
    with running(settings_of(folder, "late", gradient_seconds=0.2)) as found:
        late = _Scripted(found, "a")
        step = late.until_active(found, epoch=1, step=0)
        asked = _in_thread(lambda: found.group.train(step, samples_of(step), last=True))
        frame = late.receive()
        asked[0].join(PATIENCE)
        assert asked[1][0].redone > 0
        with pytest.raises(ChannelFailed):  # its connection is closed: what it says reaches nobody
            late.channel.send(late.worker._answer(frame), 5)
            late.channel.receive(5)
        again = _Scripted(found, "a")
        step = again.until_active(found, epoch=2, step=step + 1)
        _finish_with(found, again, step)
        assert distance(alone, found.weights()) < SAME


def _finish_with(found: Running, lane: _Scripted, step: int) -> None:
    for number in range(step, STEPS):
        thread, results = _in_thread(partial(found.group.train, number, samples_of(number), last=True))
        assert [lane.answer(), lane.answer()] == ["compute", "update"]
        thread.join(PATIENCE)
        assert results[0].lanes == ("a",)


def test_other_weights_are_noticed_before_activation(folder: Path) -> None:
    with running(settings_of(folder, "weights")) as found:
        lane = _Scripted(found, "a")
        found.group.join("a", 1)
        assert lane.answer() == "state"
        found.wait("a", LaneState.SYNCING)
        replica = lane.worker._replica
        assert isinstance(replica, TrainingReplica)
        with torch.no_grad():
            next(replica.model.parameters()).add_(1e-3)
        thread, _ = _in_thread(lambda: found.group.train(0, samples_of(0), last=True))
        assert [lane.answer(), lane.answer()] == ["compute", "update"]
        thread.join(PATIENCE)
        found.wait("a", LaneState.GONE)
        assert "not those of the core" in found.group.lanes()["a"].reason
        assert not found.group.activate("a")


def test_a_worker_is_killed_with_the_process_that_started_it(folder: Path) -> None:
    """Although the group that it is connected to goes on: its device must be free when its trainer is gone."""
    with running(settings_of(folder, "parent")) as run:
        group = run.group
        command = f"{sys.executable} -m steelyard.live.train.worker {group.address} --lane a --with-parent; true"
        parent = subprocess.Popen(["sh", "-c", command], env={**os.environ, SECRET: group.secret})
        run.wait("a", LaneState.IDLE)
        group.join("a", 1)
        run.wait("a", LaneState.SYNCING)
        parent.kill()
        parent.wait()
        group.train(0, samples_of(0), last=True)  # it is asked for an exchange, and does not answer
        run.wait("a", LaneState.GONE)
