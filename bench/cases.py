"""What is measured: each case is one question about speed, memory or growth."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from steelyard import Result, Scenario, scenario_from_dict, simulate
from steelyard.posttrain.run import drive
from steelyard.scenario import load_posttrain

_EXAMPLES = Path(__file__).parents[1] / "examples" / "posttrain"


@dataclass(frozen=True)
class Measured:
    """One run: CPU seconds of ``simulate`` (compiling costs and computing all metrics included).

    Of post-training the same of ``posttrain``, and requests are turns of trajectories.
    """

    case: str
    requests: int
    replicas: int
    steps: int
    cpu_s: float
    peak_gib: float
    training_steps: int = 0

    def row(self) -> dict[str, Any]:
        """JSON-ready, with the rates people ask for."""
        rates = {"requests_per_cpu_s": self.requests / self.cpu_s, "steps_per_cpu_s": self.steps / self.cpu_s}
        row = {**asdict(self), **rates, "us_per_request": self.cpu_s / self.requests * 1e6}
        return row | ({"cpu_s_per_training_step": self.cpu_s / self.training_steps} if self.training_steps else {})


def serving(replicas: int, requests: int, router: str = "round-robin") -> Scenario:
    """Llama-3.1-8B on H100s, 768 tokens in, 192 out, Poisson, 6 requests/s per replica."""
    return scenario_from_dict(
        {
            "name": "bench",
            "model": "llama-3.1-8b",
            "cost": {"source": "analytic"},  # what is timed is the engine, not how costs are interpolated
            "fleet": {"gpu": "h100", "replicas": replicas, "router": router},
            "workload": {
                "arrivals": {"kind": "poisson", "rate": 6.0 * replicas},
                "requests": requests,
                "prompt": 768,
                "output": 192,
            },
            "seed": 1,
        }
    )


def long_tail() -> Scenario:
    """A rollout: 512 requests at once, lognormal outputs up to 32,768 tokens, one replica."""
    return scenario_from_dict(
        {
            "name": "long-tail",
            "model": "llama-3.1-8b",
            "cost": {"source": "analytic"},  # what is timed is the engine, not how costs are interpolated
            "fleet": {"gpu": "h100"},
            "engine": {"max_num_seqs": 512},
            "workload": {
                "arrivals": {"kind": "burst"},
                "requests": 512,
                "prompt": 512,
                "output": {"kind": "lognormal", "median": 2000, "p95": 16000, "max": 32768},
            },
            "seed": 1,
        }
    )


def apart(requests: int) -> Scenario:
    """Prefill and decode apart on 1,024 H800: 256 engines of one GPU, 384 of two; 3,000 requests/s."""
    return scenario_from_dict(
        {
            "name": "apart",
            "model": "llama-3.1-8b",
            "cost": {"source": "analytic"},  # what is timed is the engine, not how costs are interpolated
            "fleet": {
                "pools": [
                    {"role": "prefill", "gpu": "h800", "replicas": 256},
                    {"role": "decode", "gpu": "h800", "replicas": 384, "tp": 2},
                ],
                "router": "least-outstanding",
            },
            "workload": {
                "arrivals": {"kind": "poisson", "rate": 3000.0},
                "requests": requests,
                "prompt": {"kind": "lognormal", "median": 1024, "p95": 4096},
                "output": {"kind": "lognormal", "median": 192, "p95": 768},
            },
            "seed": 1,
        }
    )


def timed(scenario: Scenario, repeats: int = 1, *, plain: bool = False) -> tuple[float, Result]:
    """The least CPU time of several runs (the machine is shared; the least is closest to the truth)."""
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        result = simulate(scenario, plain=plain)
        best = min(best, time.process_time() - began)
    return best, result


def _measure(case: str, scenario: Scenario, repeats: int, *, plain: bool = False) -> Measured:
    cpu, result = timed(scenario, repeats, plain=plain)
    summary = result.summary
    return Measured(case, summary.requests, summary.replicas, summary.steps, cpu, _peak_gib())


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _post_train(example: str, steps: int) -> Callable[[str], Measured]:
    """An example of post-training, for so many training steps: 2,048 trajectories each, and a router that looks."""

    def measure(case: str) -> Measured:
        scenario = load_posttrain(_EXAMPLES / f"{example}.yaml", [f"steps={steps}"])
        began = time.process_time()
        loop = drive(scenario).loop
        cpu = time.process_time() - began
        engines = loop.stage.engines.values()
        turns = int(loop.record.trajectories.ended()["turns"].sum())
        ran = sum(engine.step for engine in engines)
        return Measured(case, turns, len(engines), ran, cpu, _peak_gib(), steps)

    return measure


def _serve(replicas: int, requests: int, repeats: int = 1, router: str = "round-robin") -> Callable[[str], Measured]:
    return lambda case: _measure(case, serving(replicas, requests, router), repeats)


CASES: dict[str, Callable[[str], Measured]] = {
    "serve-1": _serve(1, 5_000, 5),
    "serve-16": _serve(16, 20_000, 5),
    "serve-128": _serve(128, 50_000, 3),
    "route-least-outstanding-128": _serve(128, 50_000, 3, "least-outstanding"),
    "route-power-of-two-128": _serve(128, 50_000, 3, "power-of-two"),
    "grow-requests-10k": _serve(16, 10_000, 5),
    "grow-requests-100k": _serve(16, 100_000, 3),
    "grow-requests-1m": _serve(16, 1_000_000),
    "grow-replicas-16": _serve(16, 200_000, 2),
    "grow-replicas-128": _serve(128, 200_000, 2),
    "grow-replicas-1024": _serve(1024, 200_000, 2),
    "million-on-1024": _serve(1024, 1_000_000),
    "apart-1024-gpus": lambda case: _measure(case, apart(200_000), 1),
    "posttrain-search-48": _post_train("search-48", 5),
    "posttrain-swe-48": _post_train("swe-48", 1),
    "long-tail": lambda case: _measure(case, long_tail(), 3),
    "long-tail-plain": lambda case: _measure(case, long_tail(), 1, plain=True),
}
