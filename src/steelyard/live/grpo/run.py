"""A run of a small model that learns: its parts, each in a process of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from steelyard.balance.pool import PoolFormed, PoolRules
from steelyard.balance.rounds import RoundSettings
from steelyard.balance.settings import CoreSettings
from steelyard.files.jsontext import json_object
from steelyard.files.writing import appending, write_text
from steelyard.live.access import Scope
from steelyard.live.addresses import CONTROLLER, GATEWAY, LOCAL, PartHost, RunAddresses
from steelyard.live.client import GatewayLink
from steelyard.live.engines.api import EngineApi, WeightUpdate
from steelyard.live.engines.connect import connect
from steelyard.live.engines.probe import Tolerance
from steelyard.live.engines.weights import sync_engine
from steelyard.live.grpo.engines import (
    CACHED_TOKENS,
    SEATS,
    engine_kind,
    engine_part,
    engine_speed,
    ties_embeddings,
    tolerance,
    vllm_program,
)
from steelyard.live.grpo.probes import read_probes
from steelyard.live.keeper import KeptEngine, Update
from steelyard.live.member import Address, RunMember
from steelyard.live.parts import ControllerPart, ControllerSpec, GatewayPart, first_of, free_ports
from steelyard.live.pool import LivePool
from steelyard.live.runs import RUN_FILE, RunPart
from steelyard.live.turn_runner import DeskSettings
from steelyard.records.jsontext import compact, readable
from steelyard.scenario.checking import checked
from steelyard.scenario.live import GrpoScenario

SYNCS = "syncs.jsonl"  # of a run: a line for each engine that got weights


@dataclass(frozen=True)
class GrpoRun:
    """A scenario, where its files lie, and the ports of its parts."""

    scenario: GrpoScenario
    folder: Path
    control: int
    gateway: int
    engines: tuple[int, ...]
    metrics: int = 0  # port of the controller's page
    host: PartHost = LOCAL  # of the part at hand

    @classmethod
    def at_free_ports(cls, scenario: GrpoScenario, folder: Path, metrics: int = 0) -> GrpoRun:
        """A run on ports that nobody uses now."""
        ports = free_ports(scenario.engines + 2)
        return cls(scenario, folder, ports[0], ports[1], tuple(ports[2:]), metrics)

    @classmethod
    def read(cls, folder: Path, host: PartHost = LOCAL) -> GrpoRun:
        """The run that was written to a folder."""
        row = json_object(folder / RUN_FILE, "the description of a run")
        scenario = checked(GrpoScenario, row["scenario"], lambda _: str(folder / RUN_FILE))
        ports = row["control"], row["gateway"], tuple(row["engines"]), row.get("metrics", 0)
        return cls(scenario, folder, *ports, host)

    def write(self) -> None:
        """Make its model, and write its description for the processes of its parts."""
        from steelyard.live.tiny.model import make_tiny

        if self.scenario.engine == "vllm":
            vllm_program()  # said now if it is not installed
        row = {
            "kind": "grpo",
            "scenario": self.scenario.model_dump(mode="json"),
            "control": self.control,
            "gateway": self.gateway,
            "engines": list(self.engines),
            "metrics": self.metrics,
        }
        write_text(self.folder / RUN_FILE, readable(row))
        make_tiny(self.model, self.scenario.seed, self.scenario.warm_up, ties_embeddings(self.scenario))

    @property
    def addresses(self) -> RunAddresses:
        """Its addresses."""
        return RunAddresses(self.folder, self.host)

    @property
    def store(self) -> Path:
        """The log of its controller."""
        return self.folder / "controller.db"

    @property
    def model(self) -> Path:
        """The weights that it begins with."""
        return self.folder / "model"

    @property
    def speed(self) -> float:
        return 1.0

    @property
    def parts(self) -> list[str]:
        """The names of its parts."""
        engines = [f"engine-{number}" for number in range(len(self.engines))]
        return ["controller", "gateway", "agents", "trainer", *engines]

    def part(self, name: str) -> RunPart:
        """A part by its name, new."""
        match name.partition("-"):
            case ["controller", _, _]:
                return ControllerPart(self._controller())
            case ["gateway", _, _]:
                settings = DeskSettings(by_token=True, keeps_prompts=True)
                return GatewayPart(self.addresses, self.folder / "journal.db", self.gateway, self.address, settings)
            case ["agents", _, _]:
                return AgentsPart(self)
            case ["trainer", _, _]:
                return TrainerPart(self)
            case [_, _, number]:
                log = self.folder / f"server-{number}.log"
                return engine_part(self.scenario, self.model, self.engines[int(number)], log, self.addresses)
        raise AssertionError(f"{name} is no part of a run")

    def address(self, scope: Scope = "engine") -> Address:
        """Of its controller."""
        return Address(*self.addresses.find(self.control, CONTROLLER), self.addresses.tokens.of(scope))

    def link(self, scope: Scope) -> GatewayLink:
        """To its gateway."""
        token = self.addresses.tokens.of(scope)
        return GatewayLink(lambda: self.addresses.upstream(self.gateway, GATEWAY, token))

    def _controller(self) -> ControllerSpec:
        return ControllerSpec(
            self.addresses,
            self.store,
            self.control,
            self.scenario.steps,
            self._settings,
            self._kept_engines,
            update_checked(tolerance(self.scenario), self.folder / SYNCS),
            pool=self._pool,
            metrics=self.metrics,
        )

    @property
    def pooled_engines(self) -> dict[int, tuple[int, ...]]:
        """The engine of each hybrid replica. The last engine always rolls out; replica 0 always trains."""
        if self.scenario.pool == "none":
            return {}
        return {number + 1: (number,) for number in range(len(self.engines) - 1)}

    def _pool(self) -> LivePool | None:
        if self.scenario.pool == "none":
            return None
        core, hybrid = ((0, (len(self.engines),)),), tuple(self.pooled_engines.items())
        return LivePool(lambda at: PoolFormed(at, core, hybrid, engines=1), self.pooled_engines)

    def _settings(self) -> CoreSettings:
        asked = self.scenario
        rounds = RoundSettings(
            asked.steps, asked.prompts, asked.group, asked.staleness, synchronous=asked.staleness == 0
        )
        pool = None if asked.pool == "none" else PoolRules(asked.pool, overlapped=asked.staleness > 0)
        speeds = ((1, engine_speed(asked)),)
        return CoreSettings(asked.router, "suffix", asked.seed, speeds, rounds, pool=pool)

    def _kept_engines(self) -> list[KeptEngine]:
        return [self._kept_engine(number, port) for number, port in enumerate(self.engines)]

    def _kept_engine(self, number: int, port: int) -> KeptEngine:
        addresses, key, kind = self.addresses, self.addresses.tokens.of("engine"), engine_kind(self.scenario)

        def follow(api: EngineApi) -> EngineApi:
            url = addresses.url(port)
            return api if api.url == url else connect(kind, url, key)

        return KeptEngine(number, 1, SEATS, CACHED_TOKENS, connect(kind, addresses.url(port), key), follow=follow)


def update_checked(allowed: Tolerance, noted: Path) -> Update:
    """What gives an engine other weights, compares its log-probabilities with the trainer's, and notes what it found in
    a file. An engine that could not be probed may yet be good: then this raises what went wrong."""

    async def update(engine: KeptEngine, weights: WeightUpdate) -> str:
        found = await sync_engine(engine.api, weights, read_probes(Path(weights.path)), allowed)
        row = {"engine": engine.number, "version": weights.version, **found.told()}
        with appending(noted) as file:
            file.write(compact(row) + "\n")
        return found.verdict_or_error()

    return update


class AgentsPart:
    """Agents with their calculator."""

    def __init__(self, run: GrpoRun) -> None:
        from steelyard.live.grpo.agents import CalculatorAgents

        self._agents = CalculatorAgents(run.link("client"), run.scenario.seed)
        self._member = RunMember(run.address, "sampler", self._agents)

    async def run(self, stop: asyncio.Event) -> None:
        try:
            await first_of([self._member.run(), stop.wait(), self._member.over.wait()])
        finally:
            self._agents.close()


class TrainerPart:
    """The trainer."""

    def __init__(self, run: GrpoRun) -> None:
        from steelyard.live.grpo.lanes import GrpoLanes
        from steelyard.live.grpo.trainer import GrpoTrainer
        from steelyard.live.train.checkpoint import begun
        from steelyard.live.train.group import TrainingGroup
        from steelyard.live.train.settings import TrainerSettings

        asked = run.scenario
        settings = TrainerSettings(
            run.model,
            run.folder / "training",
            device=asked.device,
            learning_rate=asked.learning_rate,
            seed=asked.seed,
            threads=1,
            published=asked.dtype,
        )
        self._group = TrainingGroup.resume(settings) if begun(settings) else TrainingGroup.begin(settings)
        replicas = list(run.pooled_engines)
        self._lanes = GrpoLanes(self._group, replicas, run.folder) if replicas else None
        self._trainer = GrpoTrainer(self._group, run.link("engine"), asked.steps, run.folder, self._lanes)
        self._member = self._trainer.member = RunMember(run.address, "trainer", self._trainer)
        if self._lanes is not None:
            self._lanes.member = self._member

    async def run(self, stop: asyncio.Event) -> None:
        self._group.start()
        duties = [self._member.run(), self._trainer.run(), stop.wait(), self._member.over.wait()]
        if self._lanes is not None:
            duties.append(self._lanes.run())
        try:
            await first_of(duties)
        finally:
            self._group.close()
            if self._lanes is not None:
                self._lanes.close()
