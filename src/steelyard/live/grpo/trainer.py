"""The trainer of a run: takes samples from the gateway's journal, trains, and publishes weights with probes of them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from steelyard.balance.commands import TrainOn
from steelyard.balance.events import PartTrained, StepTrained, TrainerReady
from steelyard.balance.kinds import Command
from steelyard.files.writing import appending
from steelyard.live.client import GatewayLink, ask
from steelyard.live.engines.probe import WeightProbe
from steelyard.live.grpo.lanes import GrpoLanes
from steelyard.live.grpo.probes import write_probes
from steelyard.live.member import RunMember
from steelyard.live.train.group import TrainingGroup
from steelyard.live.train.samples import Sample
from steelyard.live.train.settings import TrainReport
from steelyard.live.wire import Message, command_of
from steelyard.records.jsontext import compact

REWARDS = "rewards.jsonl"  # of a run: a line for each step
_PROBED = 2  # samples whose log-probabilities engines are compared with


class GrpoTrainer:
    """Trains on one part after the other. A new one goes on from the newest checkpoint."""

    def __init__(
        self, group: TrainingGroup, gateway: GatewayLink, steps: int, folder: Path, lanes: GrpoLanes | None = None
    ) -> None:
        self.member: RunMember | None = None
        self._group, self._gateway, self._steps, self._folder = group, gateway, steps, folder
        self._lanes = lanes
        self._orders: asyncio.Queue[TrainOn] = asyncio.Queue()
        self._wanted = -1  # the last step that samples were asked for

    # -- duties -------------------------------------------------------------------------------------------------

    def catch_up(self, state: Message) -> None:
        self._wanted = state["asked"]
        if self._lanes is not None:
            self._lanes.catch_up(state["pool"])
        for row in state["orders"]:
            self.carry_out(command_of(row))

    def carry_out(self, command: Command) -> None:
        if not isinstance(command, TrainOn):
            assert self._lanes is not None, f"{command} is for a pool"
            self._lanes.carry_out(command)
            return
        self._orders.put_nowait(command)

    def notice(self, notice: Message) -> None:
        """Engines have weights of a version: the next step may begin."""
        version = notice.get("published", -1)
        if self._wanted < version < self._steps:
            self._wanted = version
            self._member.report(TrainerReady(0.0, version))

    # -----------------------------------------------------------------------------------------------------------

    @property
    def _member(self) -> RunMember:
        assert self.member is not None, "it is a member of a run"
        return self.member

    async def run(self) -> None:
        """Train for ever."""
        while True:
            order = await self._orders.get()
            samples = [sample_of(await self._stored(name)) for name in order.trajectories]
            if order.step < self._group.progress.step:  # trained before this process was started, and not reported
                if order.last:
                    await self._publish(order.step, samples, [])
                continue
            before = await self._logprobs(samples) if order.last else []
            report = await self._train(order, samples)
            if not order.last:
                self._member.report(PartTrained(0.0, order.step, order.part))
                continue
            await asyncio.to_thread(self._group.checkpoint)
            self._note(report)
            await self._publish(order.step, samples, before)

    async def _train(self, order: TrainOn, samples: list[Sample]) -> TrainReport:
        """Train on a part of a step, with the lanes that are active as the step begins."""
        version, lanes = self._group.progress.version, self._lanes
        if lanes is not None and order.part == 0:
            await lanes.begin(order.step, version)
        report = await asyncio.to_thread(self._group.train, order.step, samples, order.last)
        if lanes is not None:
            lanes.computed(report.tokens, report.lane_tokens)
            if order.last:
                lanes.end(order.step, version)
        return report

    async def _stored(self, name: str) -> Message:
        return await ask(self._gateway, f"/v1/trajectories/{name}", {})

    async def _logprobs(self, samples: list[Sample]) -> list[list[float]]:
        """The trainer's log-probabilities of those samples that engines are probed with."""
        return [await asyncio.to_thread(self._group.logprobs, list(each.tokens)) for each in samples[:_PROBED]]

    async def _publish(self, step: int, samples: list[Sample], before: list[list[float]]) -> None:
        """Write weights and probes, and report both. What was written before is reported again."""
        version = step + 1
        path = await asyncio.to_thread(self._group.publish, version)
        if samples:
            now = await self._logprobs(samples)
            earlier = before or [[]] * len(now)
            probes = [
                WeightProbe(tuple(sample.tokens), tuple(new), tuple(old))
                for sample, new, old in zip(samples, now, earlier, strict=False)  # not all are probed
            ]
            write_probes(path, probes)
        self._member.report(StepTrained(0.0, step))
        self._member.tell("weights", {"version": version, "path": str(path)})

    def _note(self, report: TrainReport) -> None:
        row = {
            "step": report.step,
            "at": time.time(),
            "mean_reward": report.mean_reward,
            "loss": report.loss,
            "tokens": report.tokens,
            "staleness": dict(report.staleness),
            "seconds": report.seconds,
        }
        with appending(self._folder / REWARDS) as file:
            file.write(compact(row) + "\n")


def sample_of(stored: Message) -> Sample:
    """A trajectory of the journal, ready to be trained on. Each turn's prompt begins with all tokens before it."""
    turns: list[dict[str, Any]] = stored["turns"]
    choices = [turn["answer"]["choices"][0] for turn in turns]
    tokens = [*choices[-1]["prompt_token_ids"], *choices[-1]["token_ids"]]
    generated = [False] * len(tokens)
    logprobs: list[float] = []
    versions: list[int] = []
    for turn, choice in zip(turns, choices, strict=True):
        first = len(choice["prompt_token_ids"])
        count = len(choice["token_ids"])
        generated[first : first + count] = [True] * count
        logprobs += choice["logprobs"]["token_logprobs"]
        for version, made in turn["answer"]["weight_versions"].items():
            versions += [int(version)] * made
    return Sample(stored["name"], stored["group"], tokens, generated, logprobs, versions, stored["reward"] or 0.0)
