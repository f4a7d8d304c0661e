"""The run split by replica, by workload and by reason of unserved requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from steelyard.sim import Result

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ReplicaLoads:
    """One entry per replica in each column."""

    requests: np.ndarray
    output_tokens: np.ndarray
    busy: np.ndarray  # share of the run in which a step was running
    mean_batch: np.ndarray  # requests in a step, weighted by its duration
    peak_waiting: np.ndarray
    preemptions: np.ndarray


@dataclass(frozen=True)
class WorkloadShare:
    """Figures of one workload of a mix; latencies are None if no request has one."""

    label: str
    requests: int
    finished: int
    prompt_tokens: float
    output_tokens: float
    ttft: tuple[float, float] | None  # p50, p95
    tpot: tuple[float, float] | None
    e2e: tuple[float, float] | None


def replica_loads(result: Result) -> ReplicaLoads:
    """The load of each replica, idle ones included."""
    replicas, duration = result.summary.replicas, result.summary.duration_s
    begun = result.requests["replica"]
    answered = result.requests.get("decode_replica", begun)
    served = np.concatenate([begun, answered]) if "decode_replica" in result.requests else begun
    taken = served >= 0
    finished = (answered >= 0) & (result.requests["status"] == "finished")
    tokens = np.bincount(answered[finished], result.requests["output"][finished], minlength=replicas)
    busy, members, preempted = np.zeros((3, replicas))
    waiting = np.zeros(replicas, dtype=np.int64)
    for steps in result.step_tables():
        seconds = steps["end"] - steps["start"]
        busy += np.bincount(steps["replica"], seconds, minlength=replicas)
        batch = steps["n_decode"] + steps["prefill_requests"]
        members += np.bincount(steps["replica"], batch * seconds, minlength=replicas)
        preempted += np.bincount(steps["replica"], steps["preempted"], minlength=replicas)
        np.maximum.at(waiting, steps["replica"], steps["waiting"])
    return ReplicaLoads(
        requests=np.bincount(served[taken], minlength=replicas),
        output_tokens=tokens,
        busy=busy / duration if duration else busy,
        mean_batch=np.divide(members, busy, out=np.zeros(len(busy)), where=busy > 0),
        peak_waiting=waiting,
        preemptions=preempted,
    )


def workload_shares(requests: Columns, most: int) -> tuple[list[WorkloadShare], int]:
    """The first `most` workloads of a mix in order of appearance, and how many there are in all."""
    codes: dict[str, int] = {}
    member = np.array([codes.setdefault(label, len(codes)) for label in requests["label"].tolist()])
    labels = list(codes)
    shown = [_share(requests, label, member == index) for index, label in enumerate(labels[:most])]
    return shown, len(labels)


def unserved_reasons(requests: Columns) -> list[tuple[str, str, int]]:
    """(status, reason, requests) of those that did not finish, most frequent first."""
    lost = requests["status"] != "finished"
    found = Counter(zip(requests["status"][lost].tolist(), requests["reason"][lost].tolist(), strict=True))
    rows = [(status, reason, count) for (status, reason), count in found.items()]
    return sorted(rows, key=lambda row: (-row[2], row[0], row[1]))


def _share(requests: Columns, label: str, rows: np.ndarray) -> WorkloadShare:
    done = rows & (requests["status"] == "finished")
    return WorkloadShare(
        label=label,
        requests=int(rows.sum()),
        finished=int(done.sum()),
        prompt_tokens=float(requests["prompt"][rows].mean()),
        output_tokens=float(requests["output"][rows].mean()),
        ttft=_p50_p95(requests["ttft"][done]),
        tpot=_p50_p95(requests["tpot"][done]),
        e2e=_p50_p95(requests["e2e"][done]),
    )


def _p50_p95(values: np.ndarray) -> tuple[float, float] | None:
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    median, tail = np.quantile(known, (0.5, 0.95))
    return float(median), float(tail)
