"""A run of a small model that learns: its parts, each in a process of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from steelyard.balance.rounds import RoundSettings
from steelyard.balance.settings import CoreSettings
from steelyard.files.jsontext import json_object
from steelyard.files.writing import appending, write_text
from steelyard.live.desk import DeskSettings
from steelyard.live.engines.api import WeightUpdate
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
from steelyard.live.parts import HOST, ControllerPart, ControllerSpec, GatewayPart, first_of, free_ports
from steelyard.live.runs import RUN_FILE, RunPart
from steelyard.live.upstream import Upstream
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

    @classmethod
    def at_free_ports(cls, scenario: GrpoScenario, folder: Path) -> GrpoRun:
        """A run on ports that nobody uses now."""
        ports = free_ports(scenario.engines + 2)
        return cls(scenario, folder, ports[0], ports[1], tuple(ports[2:]))

    @classmethod
    def read(cls, folder: Path) -> GrpoRun:
        """The run that was written to a folder."""
        row = json_object(folder / RUN_FILE, "the description of a run")
        scenario = checked(GrpoScenario, row["scenario"], lambda _: str(folder / RUN_FILE))
        return cls(scenario, folder, row["control"], row["gateway"], tuple(row["engines"]))

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
        }
        write_text(self.folder / RUN_FILE, readable(row))
        make_tiny(self.model, self.scenario.seed, self.scenario.warm_up, ties_embeddings(self.scenario))

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
                return GatewayPart(self.folder / "journal.db", self.gateway, self.address, settings)
            case ["agents", _, _]:
                return AgentsPart(self)
            case ["trainer", _, _]:
                return TrainerPart(self)
            case [_, _, number]:
                log = self.folder / f"server-{number}.log"
                return engine_part(self.scenario, self.model, self.engines[int(number)], log)
        raise AssertionError(f"{name} is no part of a run")

    def address(self) -> Address:
        """Of its controller."""
        return Address(HOST, self.control)

    def _controller(self) -> ControllerSpec:
        return ControllerSpec(
            self.store,
            self.control,
            self.scenario.steps,
            self._settings,
            self._kept_engines,
            update_checked(tolerance(self.scenario), self.folder / SYNCS),
        )

    def _settings(self) -> CoreSettings:
        asked = self.scenario
        rounds = RoundSettings(
            asked.steps, asked.prompts, asked.group, asked.staleness, synchronous=asked.staleness == 0
        )
        return CoreSettings(asked.router, "suffix", asked.seed, ((1, engine_speed(asked)),), rounds)

    def _kept_engines(self) -> list[KeptEngine]:
        return [
            KeptEngine(number, 1, SEATS, CACHED_TOKENS, connect(engine_kind(self.scenario), f"http://{HOST}:{port}"))
            for number, port in enumerate(self.engines)
        ]


def update_checked(allowed: Tolerance, noted: Path) -> Update:
    """What gives an engine other weights, compares its log-probabilities with the trainer's, and notes what it found in
    a file."""

    async def update(engine: KeptEngine, weights: WeightUpdate) -> str:
        found = await sync_engine(engine.api, weights, read_probes(Path(weights.path)), allowed)
        row = {"engine": engine.number, "version": weights.version, **found.told()}
        with appending(noted) as file:
            file.write(compact(row) + "\n")
        return found.why

    return update


class AgentsPart:
    """Agents with their calculator."""

    def __init__(self, run: GrpoRun) -> None:
        from steelyard.live.grpo.agents import CalculatorAgents

        self._agents = CalculatorAgents(Upstream(HOST, run.gateway), run.scenario.seed)
        self._member = RunMember(run.address, "sampler", self._agents)

    async def run(self, stop: asyncio.Event) -> None:
        try:
            await first_of([self._member.run(), stop.wait(), self._member.over.wait()])
        finally:
            self._agents.close()


class TrainerPart:
    """The trainer."""

    def __init__(self, run: GrpoRun) -> None:
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
        self._trainer = GrpoTrainer(self._group, Upstream(HOST, run.gateway), asked.steps, run.folder)
        self._member = self._trainer.member = RunMember(run.address, "trainer", self._trainer)

    async def run(self, stop: asyncio.Event) -> None:
        self._group.start()
        try:
            await first_of([self._member.run(), self._trainer.run(), stop.wait(), self._member.over.wait()])
        finally:
            self._group.close()
