"""A run on emulated engines: its parts, in one process or many."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from steelyard.balance.plan import Plan
from steelyard.balance.settings import CoreSettings
from steelyard.collector import collector_on_new
from steelyard.files.jsontext import json_object
from steelyard.files.writing import write_text
from steelyard.live.access import Scope
from steelyard.live.addresses import CONTROLLER, GATEWAY, LOCAL, PartHost, RunAddresses
from steelyard.live.client import GatewayLink
from steelyard.live.control import ControlServer
from steelyard.live.emulated.agents import EmulatedAgents
from steelyard.live.emulated.lanes import EmulatedLanes
from steelyard.live.emulated.node import EmulatedNode
from steelyard.live.emulated.trainer import EmulatedTrainer
from steelyard.live.emulated.weights import ScoredAtOnce, update_emulated
from steelyard.live.engines.api import EngineApi
from steelyard.live.engines.condition import WatchRules
from steelyard.live.keeper import Keeper, KeptEngine
from steelyard.live.member import Address, RunMember
from steelyard.live.parts import ControllerPart, ControllerSpec, GatewayPart, first_of, free_ports
from steelyard.live.plan_worker import PlanWorker
from steelyard.live.planner import LivePlanner, PlannedRun
from steelyard.live.pool import LivePool
from steelyard.live.roster import Roster, wanted_engines
from steelyard.live.runs import RUN_FILE, RunPart
from steelyard.live.turn_runner import DeskSettings
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.lending import Lending
from steelyard.posttrain.plan_simulator import PlanSimulator
from steelyard.posttrain.planning import Training, planner_settings
from steelyard.posttrain.roles import first_places
from steelyard.posttrain.setup import Job, PosttrainSetup, set_up_posttrain
from steelyard.records.jsontext import compact, readable
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.scenario.posttrain_loading import posttrain_from_dict

_BUSY_SECONDS = 5.0  # that a process may have to wait for a CPU; chosen


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
        """The names of its parts, with the engines that are wanted now."""
        return ["controller", "gateway", "job", *(f"engine-{number}" for number in self.wanted)]

    @property
    def wanted(self) -> dict[int, tuple[int, int]]:
        """Degree and port of each engine that is wanted now."""
        return wanted_engines(self.folder) or dict(enumerate(zip(self.degrees, self.engines, strict=True)))

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

    @property
    def plans(self) -> bool:
        """Whether a planner changes its engines."""
        return self.scenario.planner != "given"

    def _controller(self) -> ControllerSpec:
        return ControllerSpec(
            self.addresses,
            self.store,
            self.control,
            self.scenario.steps,
            self._settings,
            lambda: [self._engine(number, *found) for number, found in self.wanted.items()],
            update_emulated,
            self.speed,
            self.metrics,
            {"scenario": compact(self.scenario.model_dump(mode="json"))},
            self._rules(),
            self._planner if self.plans else None,
            self._pool,
        )

    def _settings(self) -> CoreSettings:
        if not self.plans:
            return core_settings(self.setup)
        simulator = PlanSimulator(self.setup)
        return core_settings(
            self.setup, planner_settings(self.scenario, simulator.world, simulator.training, simulator.written)
        )

    def _planner(self, server: ControlServer, keeper: Keeper) -> LivePlanner:
        planned = PlannedRun(
            self.folder,
            self.scenario.steps,
            self.scenario.gpus,
            self.setup.topology.gpus_per_node,
            self.speed,
            core_settings(self.setup).rounds,
            lambda: self._first_roster(server),
            lambda each: self._engine(each.number, each.tp, each.port, each.since),
            free_ports,
        )
        return LivePlanner(planned, server, keeper, PlanWorker(self.scenario))

    def _first_roster(self, server: ControlServer) -> Roster:
        planning = server.controller.core.planning
        assert planning is not None, "its core plans"
        places, job = first_places(self.degrees, self.scenario.training.gpus, self.scenario.gpus, shared=False)
        return Roster.first(places, job, self.engines, planning.plan)

    @cached_property
    def lending(self) -> Lending | None:
        """The replicas of its pool, if it has one."""
        if self.scenario.pool == "none":
            return None
        job = self.setup.job.cost
        places, training = first_places(self.degrees, self.scenario.training.gpus, self.scenario.gpus, shared=False)
        return Lending(self.setup, job, training, places)

    @property
    def pooled_engines(self) -> dict[int, tuple[int, ...]]:
        """The engines of each hybrid replica, by number."""
        places, _ = first_places(self.degrees, self.scenario.training.gpus, self.scenario.gpus, shared=False)
        units = {} if self.lending is None else self.lending.units
        return {replica: tuple(places.index(gpus) for gpus in unit) for replica, unit in units.items()}

    def _pool(self) -> LivePool | None:
        lending = self.lending
        if lending is None:
            return None
        return LivePool(lending.formed, self.pooled_engines, lending.train_seconds)

    def _engine(self, number: int, tp: int, port: int, since: float = 0.0) -> KeptEngine:
        limits = self.setup.kinds[tp].limits
        addresses, key = self.addresses, self.addresses.tokens.of("engine")

        def follow(api: EngineApi) -> EngineApi:
            url = addresses.url(port)
            return api if api.url == url else ScoredAtOnce(url, key)

        api = ScoredAtOnce(addresses.url(port), key)
        room = limits.room
        return KeptEngine(number, tp, limits.max_num_seqs, room, api, since=since, follow=follow)

    def _rules(self) -> WatchRules:
        """Engines that are emulated faster hang sooner, but not within what a busy machine may take."""
        usual = WatchRules()
        return WatchRules(
            stall_seconds=max(_BUSY_SECONDS, usual.stall_seconds / self.speed),
            alone_seconds=max(2 * _BUSY_SECONDS, usual.alone_seconds / self.speed),
        )

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
        self._setup = run.setup
        lanes = None if run.lending is None else EmulatedLanes(run.lending, run.speed)
        tokens = self.agents.tokens
        self.trainer = EmulatedTrainer(run.setup.job, run.scenario.steps, tokens, run.speed, self._job_of, lanes)
        self.sampler = RunMember(run.address, "sampler", self.agents)
        self.trainer.member = RunMember(run.address, "trainer", self.trainer)
        if lanes is not None:
            lanes.member = self.trainer.member

    @cached_property
    def _training(self) -> Training:
        return Training(self._setup, self._setup.scenario.gpus)

    def _job_of(self, plan: Plan) -> Job:
        return self._training.job(plan.training, plan.buckets)

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
            if self.trainer.lanes is not None:
                self.trainer.lanes.close()


class EmulatedEnginePart:
    """One engine."""

    def __init__(self, run: EmulatedRun, number: int) -> None:
        self.node = EmulatedNode(run.setup, run.speed, run.addresses.listen, run.addresses.access)
        self._tp, self._port = run.wanted[number]

    async def run(self, stop: asyncio.Event) -> None:
        engine = self.node.start(self._tp, self._port)
        try:
            with collector_on_new():
                await first_of([self.node.engines[engine].serving, stop.wait()])
        finally:
            await self.node.close()
