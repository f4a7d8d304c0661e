"""The outcome of one load on one fleet, stored in a file so that a study can be stopped and resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import steelyard
from steelyard import Result, Scenario, load_scenario, simulate

RUNS = Path("runs") / "studies"
_WARM, _LATE = 0.35, 0.85  # requests count that arrive between these shares of the run; chosen
GROWTH = 0.02  # waiting may grow by this share of the time; above, the fleet is overloaded; chosen


@dataclass(frozen=True)
class Outcome:
    """Latencies of requests that arrived while the fleet was full, and how fast waiting grew."""

    rate: float
    output_tokens_per_s: float
    usd_per_million_output_tokens: float
    ttft_p50: float
    ttft_p95: float
    tpot_mean: float
    tpot_p95: float
    growth: float

    def meets(self, ttft: float, tpot: float) -> bool:
        """Whether p95 of both meet their limits, and the fleet is not overloaded."""
        return self.growth <= GROWTH and self.ttft_p95 <= ttft and self.tpot_p95 <= tpot


class Book:
    """Outcomes by scenario and by the program that simulates it, one JSON line each."""

    def __init__(self, study: str) -> None:
        self.path = RUNS / f"{study}.jsonl"
        self._program = _program()
        self._known: dict[str, Outcome] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                row = json.loads(line)
                self._known[row["key"]] = Outcome(**row["outcome"])

    def look_up(self, scenario: Scenario) -> Outcome:
        """The outcome of a scenario, from the file or simulated now."""
        asked = scenario.model_dump_json(exclude={"name"})
        key = hashlib.sha256(f"{self._program} {asked}".encode()).hexdigest()[:24]
        if key not in self._known:
            self._known[key] = outcome = outcome_of(simulate(scenario))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, "outcome": asdict(outcome)}) + "\n")
        return self._known[key]


def _program() -> str:
    """A digest of the simulator's source and data: outcomes of another version are not reused."""
    digest = hashlib.sha256()
    folder = Path(steelyard.__file__).parent
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".yaml", ".json"):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def loaded(path: Path, fleet: object, rate: float, requests: int, changes: Sequence[str] = ()) -> Scenario:
    """A study's template with another fleet and load."""
    own = [f"fleet={json.dumps(fleet)}", f"workload.arrivals.rate={rate:.6g}", f"workload.requests={requests}"]
    return load_scenario(path, [*changes, *own])


def outcome_of(result: Result) -> Outcome:
    """The middle of a run with steady arrivals: after the fleet has filled, and before it empties."""
    requests, summary = result.requests, result.summary
    arrival = requests["arrival"]
    last = float(arrival.max())
    among = (arrival >= _WARM * last) & (arrival <= _LATE * last) & (requests["status"] == "finished")
    ttft, tpot = requests["ttft"][among], requests["tpot"][among]
    slope = float(np.polyfit(arrival[among], ttft, 1)[0])
    tokens = float(requests["output"].sum()) / last  # throughput equals the offered load if waiting does not grow
    dollars = summary.cost.usd_per_gpu_hour * summary.gpus / 3600 / tokens * 1e6
    return Outcome(
        rate=len(arrival) / last,
        output_tokens_per_s=tokens,
        usd_per_million_output_tokens=dollars,
        ttft_p50=float(np.percentile(ttft, 50)),
        ttft_p95=float(np.percentile(ttft, 95)),
        tpot_mean=float(tpot.mean()),
        tpot_p95=float(np.percentile(tpot, 95)),
        growth=slope,
    )
