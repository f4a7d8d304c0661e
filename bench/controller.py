"""`python -m bench.controller`: how many events a second a controller decides, with its log on (``synchronous=FULL``).

- **Under load:** the controller is a process of its own, and this one plays a gateway whose engines take no time: every
  turn is over as soon as it is placed, 1,000 at once. Events come in batches, as many as were reported during a write.
- **Singly:** each event has a transaction of its own, as on an idle cluster.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.gateway import cpu_seconds
from steelyard.balance.commands import Place
from steelyard.balance.events import Begun, Called, Ended, ReplicaUp, Returned
from steelyard.balance.kinds import Command, Event
from steelyard.balance.settings import CoreSettings
from steelyard.emulate.servers import listen
from steelyard.live.addresses import HOST
from steelyard.live.control import ControlServer
from steelyard.live.controller import Controller
from steelyard.live.member import Address, RunMember
from steelyard.live.parts import free_ports
from steelyard.live.wire import Message
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.records import Turn
from steelyard.scenario import posttrain_from_dict

_RUN: dict[str, Any] = {
    "name": "controlled",
    "model": "qwen3-14b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 64, "group": 16},
    "mode": "asynchronous",
    "rollout": [{"tp": 2, "replicas": 8}],
    "training": {"tp": 4, "dp": 2},
    "steps": 1,
}
_AT_ONCE, _TURNS = 1_000, 8
_WARM_SECONDS, _SECONDS = 3.0, 15.0
_SINGLE = 3_000  # events


class NoTime:
    """Turns of a gateway whose engines take no time, one trajectory after the other in each place."""

    def __init__(self) -> None:
        self.member: RunMember | None = None
        self._turns: dict[str, int] = {}
        self._begun = 0

    def begin(self) -> Begun:
        """The next trajectory."""
        name = f"sample-{self._begun}"
        self._begun += 1
        self._turns[name] = 0
        return Begun(0.0, name, name, 500, 0, group=name)

    def answers(self, command: Command) -> list[Event]:
        """What follows from a command: a turn that was placed is over, and the next one is wanted."""
        if not isinstance(command, Place):
            return []
        name, epoch = command.trajectory, command.epoch
        self._turns[name] += 1
        called = Called(0.0, name, epoch, 200)
        if self._turns[name] < _TURNS:
            return [called, Returned(0.0, name, epoch, Turn(200, "search", "ok", 300, 1.0))]
        del self._turns[name]
        return [called, Ended(0.0, name, epoch, Turn(200)), self.begin()]

    # -- duties -------------------------------------------------------------------------------------------------

    def catch_up(self, state: Message) -> None:
        assert self.member is not None
        for _ in range(_AT_ONCE):
            self.member.report(self.begin())

    def carry_out(self, command: Command) -> None:
        assert self.member is not None
        for event in self.answers(command):
            self.member.report(event)

    def notice(self, notice: Message) -> None:
        pass


def _settings() -> CoreSettings:
    return core_settings(set_up_posttrain(posttrain_from_dict(_RUN)))


def _engines(controller: Controller) -> None:
    controller.tell([ReplicaUp(0.0, number, 2, 256, 500_000, 0) for number in range(8)])


def _control(path: str, port: int) -> None:
    """The controller's process."""

    async def main() -> None:
        server = ControlServer()
        server.open(Path(path), _settings())
        _engines(server.controller)
        await server.serve(listen(HOST, port))

    asyncio.run(main())


async def _play(port: int, pid: int, store: Path) -> tuple[float, float]:
    """Events a second while a member reports as fast as it gets commands, and the controller's share of a CPU."""
    duties = NoTime()
    member = duties.member = RunMember(lambda: Address(HOST, port), "gateway", duties)
    running = asyncio.ensure_future(member.run())
    await member.connected.wait()
    await asyncio.sleep(_WARM_SECONDS)
    before, begun, cpu = _stored(store), time.monotonic(), cpu_seconds(pid)
    await asyncio.sleep(_SECONDS)
    events, seconds, used = _stored(store) - before, time.monotonic() - begun, cpu_seconds(pid) - cpu
    running.cancel()
    return events / seconds, used / seconds


def _stored(store: Path) -> int:
    """Events on disk."""
    db = sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)
    try:
        return int(db.execute("SELECT MAX(place) + 1 FROM events").fetchone()[0])
    finally:
        db.close()


def _under_load(folder: Path) -> tuple[float, float]:
    store, port = folder / "load.db", free_ports(1)[0]
    process = multiprocessing.get_context("spawn").Process(target=_control, args=(str(store), port))
    process.start()
    try:
        return asyncio.run(_play(port, process.pid or 0, store))
    finally:
        process.kill()
        process.join()


def _singly(folder: Path) -> tuple[float, float]:
    duties, waiting = NoTime(), list[Event]()
    controller = Controller.begin(
        folder / "single.db", _settings(), lambda _, command: waiting.extend(duties.answers(command))
    )
    _engines(controller)
    waiting += [duties.begin() for _ in range(_AT_ONCE)]
    begun, cpu = time.monotonic(), time.process_time()
    for _ in range(_SINGLE):
        controller.tell([waiting.pop(0)])
    seconds = time.monotonic() - begun
    used = time.process_time() - cpu
    controller.store.close()
    return _SINGLE / seconds, used / seconds


def main() -> None:
    """Print a table, with the load of the machine."""
    table = Table("events", "a second", "CPU of the controller", box=None)
    with tempfile.TemporaryDirectory(dir=".") as folder:  # where the disk is, and not memory
        for name, measure in (("under load", _under_load), ("singly", _singly)):
            rate, cpu = measure(Path(folder))
            table.add_row(name, f"{rate:,.0f}", f"{cpu:.0%}")
    Console().print(table)
    Console().print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs", highlight=False)


if __name__ == "__main__":
    main()
