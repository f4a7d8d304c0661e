"""New weights for engines, checked before they count.

An engine is paused, forgets its cached KV, loads the weights, and is probed with log-probs (`probe.py`). Only one that
passes goes on. One that fails, does not answer, or still has another version is quarantined: it stays paused, and the
report says why. The cache goes before the weights come, so that an engine which has the version never has older KV,
even if this was interrupted in between.

vLLM and SGLang do not answer a probe while they are paused. Such an engine is resumed for its probe, and paused again
if that fails. Requests that were kept go on meanwhile with weights that are not checked yet, and the probe waits until
their KV is computed again; ``unchecked`` says how long it took. To rule that out, pause with ``abort`` or ``wait``, and
send the engine no requests until it is reported as good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from steelyard.live.engines.api import EngineApi, EngineError, PauseMode, WeightUpdate
from steelyard.live.engines.probe import ProbeVerdict, Tolerance, WeightProbe, compare

SyncOutcome = Literal["updated", "already", "quarantined"]


@dataclass(frozen=True)
class EngineSync:
    """What became of one engine."""

    engine: str  # its URL
    outcome: SyncOutcome
    seconds: float
    why: str = ""  # it is quarantined
    paused: bool = False  # it is paused now, for sure
    unchecked: float = 0.0  # seconds that it ran with weights that no probe had passed
    verdict: ProbeVerdict | None = None  # of its last probe

    def told(self) -> dict[str, object]:
        """As JSON has it."""
        probe = None if self.verdict is None else self.verdict._asdict()
        return {"outcome": self.outcome, "seconds": self.seconds, "unchecked": self.unchecked, "probe": probe}

    def verdict_or_error(self) -> str:
        """Why it must not be used with its weights; empty if it may. Raises what went wrong if it was not probed."""
        if self.why and (self.verdict is None or not self.verdict.why):
            raise EngineError(self.engine, "new weights", self.why)
        return self.why


@dataclass(frozen=True)
class SyncReport:
    """What became of all."""

    version: str
    engines: tuple[EngineSync, ...]

    @property
    def quarantined(self) -> tuple[EngineSync, ...]:
        return tuple(each for each in self.engines if each.outcome == "quarantined")


async def sync_weights(
    engines: Sequence[EngineApi],
    update: WeightUpdate,
    probes: Sequence[WeightProbe],
    tolerance: Tolerance,
    pause: PauseMode = "keep",
) -> SyncReport:
    """Bring weights to engines, to all at the same time, and check each.

    An engine that has the version already is probed alone, and updated only if it fails. So this can be called again
    after it was interrupted. Engines that it was interrupted at are left paused.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sync_engine(each, update, probes, tolerance, pause)) for each in engines]
    return SyncReport(update.version, tuple(task.result() for task in tasks))


async def sync_engine(
    engine: EngineApi,
    update: WeightUpdate,
    probes: Sequence[WeightProbe],
    tolerance: Tolerance,
    pause: PauseMode = "keep",
) -> EngineSync:
    """The same for one engine."""
    if not probes:
        raise ValueError("weights are not checked without a probe; give at least one")
    return await _EngineUpdate(engine, update, probes, tolerance).run(pause)


async def update_engine(
    engine: EngineApi, update: WeightUpdate, probes: Sequence[WeightProbe], tolerance: Tolerance
) -> str:
    """Bring weights to an engine. Returns why it must not be used with them; empty if it may. An engine that could not
    be probed may yet be good: this raises what went wrong."""
    return (await sync_engine(engine, update, probes, tolerance)).verdict_or_error()


class _EngineUpdate:
    """New weights for one engine."""

    def __init__(
        self, engine: EngineApi, update: WeightUpdate, probes: Sequence[WeightProbe], tolerance: Tolerance
    ) -> None:
        self._engine, self._update, self._probes, self._tolerance = engine, update, probes, tolerance
        self._begun = time.monotonic()
        self._unchecked = 0.0
        self._verdict: ProbeVerdict | None = None

    async def run(self, pause: PauseMode) -> EngineSync:
        try:
            if await self._has_it():
                return self._report("already")
            await self._engine.pause(pause)
            await self._engine.reset_prefix_cache()
            await self._engine.update_weights(self._update)
            why = await self._other_version() or await self._fault()
        except EngineError as problem:
            why = str(problem)
        if not why:
            return self._report("updated")
        return self._report("quarantined", why, paused=await self._paused())

    async def _has_it(self) -> bool:
        """Whether it has these weights. A version is a label, which an engine can have without them."""
        if await self._engine.weight_version() != self._update.version:
            return False
        try:
            return not await self._fault()
        except EngineError:
            return False  # it may answer again with other weights

    async def _other_version(self) -> str:
        version = await self._engine.weight_version()
        if version in (None, self._update.version):
            return ""
        return f"{self._engine.url}: says that it has version {version}, not {self._update.version}"

    async def _fault(self) -> str:
        """Why an engine is not good. One that is good goes on, and any other does not."""
        if self._engine.scores_paused:
            why = await self._probe()
            if not why:
                await self._engine.resume()
            return why
        opened, good = time.monotonic(), False
        try:
            await self._engine.resume()
            why = await self._probe()
            good = not why
            return why
        finally:  # also if this is cancelled
            if not good:
                await self._paused()
            self._unchecked += time.monotonic() - opened

    async def _probe(self) -> str:
        found = [await self._engine.logprobs(probe.tokens) for probe in self._probes]
        self._verdict = compare(self._probes, found, self._tolerance)
        return f"{self._engine.url}: {self._verdict.why}" if self._verdict.why else ""

    async def _paused(self) -> bool:
        try:
            await self._engine.pause("keep")
        except EngineError:
            return False
        return True

    def _report(self, outcome: SyncOutcome, why: str = "", paused: bool = False) -> EngineSync:
        seconds = time.monotonic() - self._begun
        return EngineSync(self._engine.url, outcome, seconds, why, paused, self._unchecked, self._verdict)
