"""A run on emulated engines: its parts, in one process or many."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from steelyard.files.jsontext import json_object
from steelyard.files.writing import write_text
from steelyard.live.access import Scope
from steelyard.live.addresses import CONTROLLER, GATEWAY, LOCAL, PartHost, RunAddresses
from steelyard.live.client import GatewayLink
from steelyard.live.desk import DeskSettings
from steelyard.live.emulated.agents import EmulatedAgents
from steelyard.live.emulated.node import EmulatedNode
from steelyard.live.emulated.trainer import EmulatedTrainer
from steelyard.live.engines.api import EngineApi, WeightUpdate
from steelyard.live.engines.vllm import EmulatedVllm
from steelyard.live.keeper import KeptEngine
from steelyard.live.member import Address, RunMember
from steelyard.live.parts import ControllerPart, ControllerSpec, GatewayPart, first_of, free_ports
from steelyard.live.runs import RUN_FILE, RunPart
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.records.jsontext import compact, readable
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.scenario.posttrain_loading import posttrain_from_dict


@dataclass(frozen=True)
class EmulatedRun:
    """A scenario, where its files lie, and the ports of its parts."""

    scenario: PosttrainScenario
    folder: Path
    speed: float
    control: int
    gateway: int
    engines: tuple[int, ...]  # in the order of the scenario's replicas
    client_seconds: float = 600.0
    metrics: int = 0  # port of the controller's page
    host: PartHost = LOCAL  # of the part at hand

    @classmethod
    def at_free_ports(cls, scenario: PosttrainScenario, folder: Path, speed: float, **settings: Any) -> EmulatedRun:
        """A run on ports that nobody uses now."""
        count = sum(bucket.replicas for bucket in scenario.rollout)
        ports = free_ports(count + 2)
        return cls(scenario, folder, speed, ports[0], ports[1], tuple(ports[2:]), **settings)

    @cached_property
    def setup(self) -> PosttrainSetup:
        return set_up_posttrain(self.scenario)

    @property
    def degrees(self) -> list[int]:
        """Tensor-parallel degrees of its engines."""
        return [bucket.tp for bucket in self.scenario.rollout for _ in range(bucket.replicas)]

    @property
    def addresses(self) -> RunAddresses:
        """Its addresses."""
        return RunAddresses(self.folder, self.host)

    @property
    def store(self) -> Path:
        """The log of its controller."""
        return self.folder / "controller.db"

    @property
    def parts(self) -> list[str]:
        """The names of its parts."""
        return ["controller", "gateway", "job", *(f"engine-{number}" for number in range(len(self.engines)))]

    def part(self, name: str) -> RunPart:
        """A part by its name, new."""
        match name.partition("-"):
            case ["controller", _, _]:
                return ControllerPart(self._controller())
            case ["gateway", _, _]:
                return self._gateway()
            case ["job", _, _]:
                return JobPart(self)
            case [_, _, number]:
                return EmulatedEnginePart(self, int(number))
        raise AssertionError(f"{name} is no part of a run")

    def _controller(self) -> ControllerSpec:
        return ControllerSpec(
            self.addresses,
            self.store,
            self.control,
            self.scenario.steps,
            lambda: core_settings(self.setup),
            lambda: [self._engine(number) for number in range(len(self.engines))],
            update_emulated,
            self.speed,
            self.metrics,
            {"scenario": compact(self.scenario.model_dump(mode="json"))},
        )

    def _engine(self, number: int) -> KeptEngine:
        tp = self.degrees[number]
        limits = self.setup.kinds[tp].limits
        addresses, key = self.addresses, self.addresses.tokens.of("engine")

        def follow(api: EngineApi) -> EngineApi:
            url = addresses.url(self.engines[number])
            return api if api.url == url else EmulatedVllm(url, key)

        api = EmulatedVllm(addresses.url(self.engines[number]), key)
        return KeptEngine(number, tp, limits.max_num_seqs, limits.blocks * limits.block_size, api, follow=follow)

    def _gateway(self) -> GatewayPart:
        counts = core_settings(self.setup).core().rounds.counts_tokens
        settings = DeskSettings(False, counts, moves_caches=True, speed=self.speed, client_seconds=self.client_seconds)
        return GatewayPart(self.addresses, self.folder / "journal.db", self.gateway, self.address, settings)

    def write(self) -> None:
        """Write its description, for the processes of its parts."""
        scenario = self.scenario
        row = {
            "kind": "emulated",
            "scenario": scenario.model_dump(mode="json"),
            "base": str(scenario.base_dir.absolute()),
            "source": scenario.source,
            "speed": self.speed,
            "control": self.control,
            "gateway": self.gateway,
            "engines": list(self.engines),
            "client_seconds": self.client_seconds,
            "metrics": self.metrics,
        }
        write_text(self.folder / RUN_FILE, readable(row))

    @classmethod
    def read(cls, folder: Path, host: PartHost = LOCAL) -> EmulatedRun:
        """The run that was written to a folder."""
        row = json_object(folder / RUN_FILE, "the description of a run")
        scenario = posttrain_from_dict(row["scenario"]).based_in(Path(row["base"]), row["source"])
        ports = row["control"], row["gateway"], tuple(row["engines"])
        more = {"client_seconds": row["client_seconds"], "metrics": row.get("metrics", 0), "host": host}
        return cls(scenario, folder, row["speed"], *ports, **more)

    def address(self, scope: Scope = "engine") -> Address:
        """Of its controller."""
        return Address(*self.addresses.find(self.control, CONTROLLER), self.addresses.tokens.of(scope))


class JobPart:
    """Agents and a trainer."""

    def __init__(self, run: EmulatedRun) -> None:
        token = run.addresses.tokens.of("client")
        gateway = GatewayLink(lambda: run.addresses.upstream(run.gateway, GATEWAY, token))
        self.agents = EmulatedAgents(run.setup, gateway, run.speed)
        self.trainer = EmulatedTrainer(run.setup.job, run.scenario.steps, self.agents.tokens, run.speed)
        self.sampler = RunMember(run.address, "sampler", self.agents)
        self.trainer.member = RunMember(run.address, "trainer", self.trainer)

    async def run(self, stop: asyncio.Event) -> None:
        assert self.trainer.member is not None
        try:
            sampling = asyncio.ensure_future(self.sampler.run())
            await self.sampler.connected.wait()  # the trainer needs lengths of samples
            over = self.sampler.over.wait()
            await first_of([sampling, self.trainer.member.run(), self.trainer.run(), stop.wait(), over])
        finally:
            sampling.cancel()
            self.agents.close()


class EmulatedEnginePart:
    """One engine."""

    def __init__(self, run: EmulatedRun, number: int) -> None:
        self.node = EmulatedNode(run.setup, run.speed, run.addresses.listen, run.addresses.access)
        self._tp, self._port = run.degrees[number], run.engines[number]

    async def run(self, stop: asyncio.Event) -> None:
        engine = self.node.start(self._tp, self._port)
        try:
            await first_of([self.node.engines[engine].serving, stop.wait()])
        finally:
            await self.node.close()


async def update_emulated(engine: KeptEngine, update: WeightUpdate) -> str:
    """Give an emulated engine other weights, while its requests are frozen."""
    await engine.api.pause("keep")
    await engine.api.update_weights(update)
    await engine.api.reset_prefix_cache()
    await engine.api.resume()
    return ""
