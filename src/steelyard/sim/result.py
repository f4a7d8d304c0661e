"""What a run produced: a summary, one row per request, one row per engine step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.engine import ABORTED, FINISHED, REJECTED, EngineLog
from steelyard.fleet import Desk
from steelyard.fleet.frontend import shown
from steelyard.scenario import Scenario
from steelyard.sim.attempts import Part, add_earlier, settled
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.setup import FleetSetup
from steelyard.sim.summary import Summary
from steelyard.workload import Workload
from steelyard.workload.rounds import HIDDEN, VISIBLE, single_rounds

Column = NDArray[Any]

_STATUS = {FINISHED: "finished", ABORTED: "aborted", REJECTED: "rejected"}
_PHASES = {VISIBLE: "visible", HIDDEN: "hidden"}


@dataclass
class Result:
    """The outcome of one scenario. Tables of steps are expanded from the engines' logs when first looked at."""

    scenario: Scenario
    summary: Summary
    requests: dict[str, Column]
    gaps: TokenGaps = field(repr=False)
    logs: list[EngineLog] = field(repr=False)
    notes: list[str] = field(default_factory=list)

    @cached_property
    def itl(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Gaps between output tokens, rising, and how many there were of each."""
        return self.gaps.rising()

    @cached_property
    def steps(self) -> dict[str, Column]:
        """One row per engine step, replica by replica."""
        tables = [log.steps() for log in self.logs]
        names = list(tables[0])
        replica = np.repeat(np.arange(len(tables)), [len(table["end"]) for table in tables])
        return {"replica": replica} | {name: np.concatenate([table[name] for table in tables]) for name in names}


def parts_of(setup: FleetSetup) -> list[Part]:
    """By replica."""
    told_early = setup.scenario.fleet.transfer.first_token == "prefill"
    parts = {
        "serve": Part(),
        "prefill": Part(first=told_early, ends=False),
        "decode": Part(begins=False, first=not told_early),
    }
    parts["attention"] = parts["decode" if setup.hands_over else "serve"]
    return [parts[each.pool.role] for each in setup.pools for _ in range(each.ranks)]


def request_table(
    workload: Workload,
    desk: Desk,
    logs: list[EngineLog],
    parts: Sequence[Part] | None = None,
    retries: Column | None = None,
) -> dict[str, Column]:
    """One row per request, in workload order; NaN where something did not happen.

    Tokens come when the client sees them. ``taken`` is when the engine's front end took a request up. ``parts`` say
    what each engine did of its requests, where that is not everything. ``attft`` is of visible answers alone: their
    first token, counted from the submission of the first of the rounds that led to them. ``retries`` say how often a
    request had to start over. Where prompts are computed apart, ``decode_replica`` answered what ``replica`` began.
    """
    n = len(workload)
    rounds = workload.rounds or single_rounds(n)
    status = np.full(n, REJECTED, dtype=np.int64)
    cached, preemptions = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    scheduled, first, finish = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    reason = np.full(n, "", dtype=object)
    for i, why in desk.refused.items():
        reason[i] = why
    parts = parts or [Part()] * len(logs)
    decode_replica = np.full(n, -1, dtype=np.int64)
    for number, (log, part) in enumerate(zip(logs, parts, strict=True)):
        rows = settled(log)
        index = rows["index"].astype(np.int64)
        status[index] = rows["status"]
        preemptions[index] += rows["preemptions"].astype(np.int64)
        if part.begins:
            cached[index] = rows["hit"]
            scheduled[index] = np.where(rows["scheduled"] >= 0, rows["scheduled"], np.nan)
        told = rows["first"] >= 0
        steps = np.concatenate([rows["first"][told], rows["last"][told]]).astype(np.int64)
        began, ended = np.split(shown(desk.host, log, steps), 2)
        if part.first:
            first[index[told]] = began
        if not part.begins:
            decode_replica[index] = number
        if part.first or part.ends:
            finish[index[told]] = ended
        for i, (second, why) in log.given_up.items():
            finish[i], reason[i] = second, why
            if first[i] > second:
                first[i] = np.nan  # the client had gone by then
    if retries is not None:
        earlier = {"scheduled": scheduled, "first_token": first, "preemptions": preemptions}
        add_earlier(earlier, logs, parts, desk.host)
    output = desk.output
    done = status == FINISHED
    arrival = desk.arrival
    tpot = np.where(done & (output > 1), (finish - first) / np.maximum(output - 1, 1), np.nan)
    return {
        "id": np.arange(n),
        "label": np.array(workload.labels, dtype=object)[workload.label],
        "phase": np.array([_PHASES[phase] for phase in range(len(_PHASES))], dtype=object)[rounds.phase],
        "replica": desk.replica,
        "arrival": arrival,
        "taken": desk.taken,
        "prompt": workload.prompt,
        "output": output,
        "cached": cached,
        "preemptions": preemptions,
        "retries": np.zeros(n, dtype=np.int64) if retries is None else retries,
        "status": np.array([_STATUS.get(s, "") for s in range(REJECTED + 1)], dtype=object)[status],
        "reason": reason,
        "scheduled": scheduled,
        "first_token": first,
        "finish": finish,
        "queue": scheduled - arrival,
        "ttft": first - arrival,
        "attft": np.where(rounds.phase == VISIBLE, first - arrival[rounds.first], np.nan),
        "tpot": tpot,
        "e2e": np.where(done, finish - arrival, np.nan),
        **({"decode_replica": decode_replica} if not all(part.begins for part in parts) else {}),
    }
