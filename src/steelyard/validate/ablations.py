"""What single mechanisms add to accuracy: captures are predicted again by a model that lacks one of them.

Only the model is changed. Captures are of engines that had all of them, and what lacks one is no setting of any engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steelyard.cost.compiled import CompiledCost
from steelyard.cost.graphs import GraphPlan, graph_plan
from steelyard.cost.source import Decodes, PrefillAttention
from steelyard.errors import UserError
from steelyard.scenario import Scenario
from steelyard.sim import Prepared, Result, set_up, simulate
from steelyard.validate.capture import read_capture_folder
from steelyard.validate.compare import LATENCIES, compare_run, replayed
from steelyard.validate.settings import gpu_of
from steelyard.validate.survey import shared_engine

EVERYTHING = "everything"


@dataclass(frozen=True)
class Ablation:
    """A mechanism, and a prepared engine without it."""

    mechanism: str
    without: Callable[[Prepared], Prepared]


@dataclass(frozen=True)
class AblatedRun:
    """The errors of one captured workload's means, by what the model lacks and by metric."""

    name: str
    errors: dict[str, dict[str, float | None]]
    padding: float = 0.0  # rows that padding adds, per token


def without_padding(prepared: Prepared) -> Prepared:
    """Graphs of every size up to the largest, so that no step is padded."""
    cost = _cost(prepared)
    sizes = tuple(range(1, cost.graphs.sizes[-1] + 1)) if cost.graphs.sizes else ()
    return replace(prepared, cost=cost.changed(replace(cost.graphs, sizes=sizes), cost.attention))


def without_graphs(prepared: Prepared) -> Prepared:
    """Every step is launched kernel by kernel, and none is padded."""
    cost = _cost(prepared)
    return replace(prepared, cost=cost.changed(GraphPlan((), "eager", "eager"), cost.attention))


def without_asynchronous_scheduling(prepared: Prepared) -> Prepared:
    """A step is scheduled and launched when the one before has returned."""
    return replace(prepared, limits=replace(prepared.limits, async_scheduling=False))


def without_context(prepared: Prepared) -> Prepared:
    """Chunks attend to themselves only, not to what the cache holds before them."""
    cost = _cost(prepared)
    attention = tuple(replace(part, prefill=_Alone(part.prefill)) for part in cost.attention)
    return replace(prepared, cost=cost.changed(cost.graphs, attention))


ABLATIONS = (
    Ablation("padding", without_padding),
    Ablation("CUDA graphs", without_graphs),
    Ablation("asynchronous scheduling", without_asynchronous_scheduling),
    Ablation("context of chunks", without_context),
)


@dataclass(frozen=True)
class _Alone:
    """Prefill attention of chunks as if each were a whole prompt."""

    whole: PrefillAttention

    @property
    def provenance(self) -> int:
        return self.whole.provenance

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        return self.whole.seconds([(tokens, 0) for tokens, _ in chunks])

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> float | None:
        return self.whole.together([(tokens, 0) for tokens, _ in chunks], decodes)


def ablations(captures: Sequence[Path], say: Callable[[str], None]) -> list[AblatedRun]:
    """Errors on every workload of some captures, with the whole model and with each mechanism left out."""
    if not captures:
        raise UserError("--ablate: no capture in these folders; give one with meta.json, config.json and requests")
    found = []
    for folder in captures:
        say(f"{folder.name}: with everything, and without one mechanism after the other")
        found += ablated_runs(folder)
    return found


def ablated_runs(folder: Path) -> list[AblatedRun]:
    """The same for one capture."""
    capture = read_capture_folder(folder)
    gpu, shared = gpu_of(capture, None), shared_engine(folder)
    found: list[AblatedRun] = []
    kinds: dict[str, Callable[[Scenario], Result]] = {EVERYTHING: simulate}
    kinds |= {each.mechanism: _simulated_without(each) for each in ABLATIONS}
    for kind, simulated in kinds.items():
        for i, (run, result) in enumerate(replayed(capture, gpu, shared, None, simulated)):
            if kind == EVERYTHING:
                found.append(AblatedRun(f"{folder.name}/{run.name}", {}, _added(result)))
            compared = compare_run(capture, run, result)
            found[i].errors[kind] = {metric: compared.latency[metric]["mean"].error for metric in LATENCIES}
    return found


def _added(result: Result) -> float:
    """Rows that pad the steps of a run, per token."""
    graphs, steps = graph_plan(result.scenario.engine), result.steps
    tokens = (steps["n_decode"] + steps["prefill_tokens"]).tolist()
    alone = (steps["prefill_requests"] == 0).tolist()
    padded = [graphs.padded(count, decode_only) or count for count, decode_only in zip(tokens, alone, strict=True)]
    return float(sum(padded) / max(1, sum(tokens)) - 1)


def _simulated_without(ablation: Ablation) -> Callable[[Scenario], Result]:
    def simulated(scenario: Scenario) -> Result:
        setup = set_up(scenario)
        pools = tuple(replace(pool, prepared=ablation.without(pool.prepared)) for pool in setup.pools)
        return simulate(replace(setup, pools=pools))

    return simulated


def _cost(prepared: Prepared) -> CompiledCost:
    if not isinstance(prepared.cost, CompiledCost):
        raise UserError("--ablate: a capture with drafts cannot be predicted without single mechanisms; leave it out")
    return prepared.cost
