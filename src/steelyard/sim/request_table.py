"""The table of requests: one row per request, from the logs of the engines that ran it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.engine import ABORTED, FINISHED, REJECTED, EngineLog
from steelyard.fleet import Desk
from steelyard.fleet.frontend import shown
from steelyard.sim.attempts import EnginePart, add_earlier, without_lost
from steelyard.sim.setup import FleetSetup
from steelyard.workload import Workload
from steelyard.workload.rounds import HIDDEN, VISIBLE, single_rounds

Column = NDArray[Any]

_UNFINISHED = 0  # status of requests that have not ended
_STATUS = {_UNFINISHED: "unfinished", FINISHED: "finished", ABORTED: "aborted", REJECTED: "rejected"}
_PHASES = {VISIBLE: "visible", HIDDEN: "hidden"}


def parts_of(setup: FleetSetup) -> list[EnginePart]:
    """By replica: the part of its requests that its engine runs."""
    first_from_prefill = setup.scenario.fleet.transfer.first_token == "prefill"
    parts = {
        "serve": EnginePart(),
        "prefill": EnginePart(first=first_from_prefill, ends=False),
        "decode": EnginePart(begins=False, first=not first_from_prefill),
    }
    parts["attention"] = parts["decode" if setup.hands_over else "serve"]
    return [parts[each.pool.role] for each in setup.pools for _ in range(each.ranks)]


def request_table(
    workload: Workload,
    desk: Desk,
    logs: Sequence[EngineLog],
    parts: Sequence[EnginePart] | None = None,
    retries: Column | None = None,
    until: float = inf,
) -> dict[str, Column]:
    """One row per request, in workload order; NaN for what did not happen, or not before ``until``.

    Token times are when the client sees them. ``taken`` is when the engine's front end took a request up. ``parts`` are
    the parts of requests that each engine ran, if not all. ``attft`` is for visible answers only: seconds from the
    submission of the first round to the answer's first token. ``retries`` is how often a request started over. With
    prefill/decode disaggregation ``replica`` ran the prefill and ``decode_replica`` the decode.
    """
    parts = parts or [EnginePart()] * len(logs)
    found = _Found.before_the_run(len(workload))
    found.refuse(desk.refused)
    for replica, (log, part) in enumerate(zip(logs, parts, strict=True)):
        if log.requests:  # most engines of a large fleet may have had none
            found.add_engine(replica, log, part, desk)
            found.give_up(log.given_up)
    found.cut(until)
    if retries is not None:
        earlier = {"scheduled": found.scheduled, "first_token": found.first, "preemptions": found.preemptions}
        add_earlier(earlier, logs, parts, desk.host)
    table = _columns(workload, desk, found, retries)
    return table if all(part.begins for part in parts) else table | {"decode_replica": found.decode_replica}


@dataclass
class _Found:
    """What the logs say of each request, in workload order."""

    status: Column
    complete: Column  # ended on an engine that runs the end of requests
    cached: Column
    preemptions: Column
    scheduled: Column
    first: Column
    finish: Column
    reason: Column
    decode_replica: Column

    @classmethod
    def before_the_run(cls, n: int) -> _Found:
        return cls(
            status=np.full(n, _UNFINISHED, dtype=np.int64),
            complete=np.zeros(n, dtype=bool),
            cached=np.zeros(n, dtype=np.int64),
            preemptions=np.zeros(n, dtype=np.int64),
            scheduled=np.full(n, np.nan),
            first=np.full(n, np.nan),
            finish=np.full(n, np.nan),
            reason=np.full(n, "", dtype=object),
            decode_replica=np.full(n, -1, dtype=np.int64),
        )

    def refuse(self, refused: dict[int, str]) -> None:
        """Requests that no engine took."""
        for i, why in refused.items():
            self.reason[i], self.status[i], self.complete[i] = why, REJECTED, True

    def add_engine(self, replica: int, log: EngineLog, part: EnginePart, desk: Desk) -> None:
        """The part of its requests that one engine ran."""
        rows = without_lost(log)
        index, status = rows["index"].astype(np.int64), rows["status"]
        self.status[index] = status
        self.complete[index] |= part.ends | (status != FINISHED) | (part.first & (desk.output[index] == 1))
        self.preemptions[index] += rows["preemptions"].astype(np.int64)
        if part.begins:
            self.cached[index] = rows["hit"]
            self.scheduled[index] = np.where(rows["scheduled"] >= 0, rows["scheduled"], np.nan)
        else:
            self.decode_replica[index] = replica
        self._add_tokens(rows, index, log, part, desk)

    def _add_tokens(self, rows: dict[str, Column], index: Column, log: EngineLog, part: EnginePart, desk: Desk) -> None:
        """When clients see the first and the last token, of the requests that got any."""
        if not part.shows:
            return
        seen = rows["first"] >= 0
        steps = np.concatenate([rows["first"][seen], rows["last"][seen]]).astype(np.int64)
        first, last = np.split(shown(desk.host, log, steps), 2)
        if part.first:
            self.first[index[seen]] = first
        self.finish[index[seen]] = last

    def give_up(self, given_up: dict[int, tuple[float, str]]) -> None:
        """Requests whose clients stopped waiting: a first token after that was not seen."""
        for i, (second, why) in given_up.items():
            self.finish[i], self.reason[i] = second, why
            if self.first[i] > second:
                self.first[i] = np.nan

    def cut(self, until: float) -> None:
        """Remove what happened after ``until``."""
        self.complete &= ~(self.finish > until)
        self.status[~self.complete], self.finish[~self.complete] = _UNFINISHED, np.nan
        self.first[self.first > until] = np.nan


def _columns(workload: Workload, desk: Desk, found: _Found, retries: Column | None) -> dict[str, Column]:
    n = len(workload)
    rounds = workload.rounds or single_rounds(n)
    arrival, output, first, finish = desk.arrival, desk.output, found.first, found.finish
    done = found.status == FINISHED
    return {
        "id": np.arange(n),
        "label": np.array(workload.labels, dtype=object)[workload.label],
        "phase": np.array([_PHASES[phase] for phase in range(len(_PHASES))], dtype=object)[rounds.phase],
        "replica": desk.replica,
        "arrival": arrival,
        "taken": desk.taken,
        "prompt": workload.prompt,
        "output": output,
        "cached": found.cached,
        "preemptions": found.preemptions,
        "retries": np.zeros(n, dtype=np.int64) if retries is None else retries,
        "status": np.array([_STATUS.get(s, "") for s in range(REJECTED + 1)], dtype=object)[found.status],
        "reason": found.reason,
        "scheduled": found.scheduled,
        "first_token": first,
        "finish": finish,
        "queue": found.scheduled - arrival,
        "ttft": first - arrival,
        "attft": np.where(rounds.phase == VISIBLE, first - arrival[rounds.first], np.nan),
        "tpot": np.where(done & (output > 1), (finish - first) / np.maximum(output - 1, 1), np.nan),
        "e2e": np.where(done, finish - arrival, np.nan),
    }
