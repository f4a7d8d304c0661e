"""Recorded engine steps, and those whose time was determined by the host instead of the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.cost import CompiledCost, GraphPlan
from steelyard.cost.host import Launch
from steelyard.cost.step import StepTime
from steelyard.errors import UserError, quoted
from steelyard.files.jsontext import json_lines, required
from steelyard.scenario.numbers import MOST_STEP_TOKENS
from steelyard.workload.traces.lines import seconds, tokens

_BEHIND = 0.85  # if the GPU has less work left than this share of a step's host time, the host decides; chosen


@dataclass(frozen=True)
class RecordedStep:
    """One step of a capture: what ran, when it was scheduled and when its result had been processed."""

    scheduled: float
    updated: float
    decodes: int
    keys: int  # cached tokens of all decodes before the step
    longest: int
    chunks: tuple[tuple[int, int], ...]

    @property
    def requests(self) -> int:
        """How many requests ran."""
        return self.decodes + len(self.chunks)

    @property
    def tokens(self) -> int:
        """How many tokens ran."""
        return self.decodes + sum(new for new, _ in self.chunks)

    def launch(self, graphs: GraphPlan) -> Launch:
        """How the step was launched."""
        return graphs.launch(self.tokens, decode_only=not self.chunks)

    def time(self, cost: CompiledCost) -> StepTime:
        """Its time by a cost model."""
        kv, longest = self.keys + self.decodes, self.longest + 1
        if self.chunks:
            return cost.mixed(self.decodes, kv, longest, list(self.chunks))
        a, b, _ = cost.decode_line(self.decodes, kv, longest)
        return StepTime(a + b * kv, *cost.decode_host(self.decodes))


def kernel_by_kernel(steps: Iterable[RecordedStep], graphs: GraphPlan) -> set[int]:
    """Tokens of the steps that replayed no graph: their kernels are compiled from then on."""
    return {step.tokens for step in steps if step.launch(graphs) == "eager"}


def read_steps(path: Path) -> list[RecordedStep]:
    """Every step of a NAME.steps.jsonl.gz, in order."""
    return [_step(row, where) for where, row in json_lines(path, None)]


def _step(row: dict[str, Any], where: str) -> RecordedStep:
    scheduled, updated = (seconds(required(row, key, where), key, where) for key in ("t_schedule", "t_update"))
    decodes, keys, longest = (
        tokens(required(row, key, where), key, where) for key in ("n_decode", "kv_decode", "kv_decode_max")
    )
    chunks = required(row, "chunks", where)
    if not isinstance(chunks, list) or not all(isinstance(chunk, list) and len(chunk) == 2 for chunk in chunks):
        raise UserError(f"{where}: chunks must be a list of [tokens, context] (found {quoted(chunks)})")
    prompts = tuple((tokens(new, "chunks", where), tokens(old, "chunks", where)) for new, old in chunks)
    step = RecordedStep(scheduled, updated, decodes, keys, longest, prompts)
    if not step.requests or any(new < 1 for new, _ in prompts):
        raise UserError(f"{where}: a step runs at least one request, and a chunk at least one token")
    if step.tokens > MOST_STEP_TOKENS:
        raise UserError(f"{where}: a step of {step.tokens:,} tokens; {MOST_STEP_TOKENS:,} are the most")
    return step


@dataclass(frozen=True)
class HostWait:
    """A step whose launch the engine waited for: host seconds from one result to the next."""

    step: RecordedStep
    since: float
    seconds: float
    alone: bool  # after a pause, nothing else in flight
    predicted: float  # its seconds by the cost model, with nothing to compile
    kernels: float  # compile time of the kernels that it was the first to run, in units of a typical kernel's


def host_waits(steps: Sequence[RecordedStep], cost: CompiledCost) -> list[HostWait]:
    """The steps whose launch took the host longer than the GPU had work.

    With asynchronous scheduling the result of step k-1 is processed when step k has been launched and the GPU has
    finished k-1, whichever is later. GPU times are predicted for the recorded steps. If the GPU is far ahead of the
    host, the launch of step k filled the time between the results of k-2 and k-1. (Selecting by observed waits would
    only pick the slow launches.) After a pause nothing is in flight, and the engine schedules again as soon as the
    first step is launched.
    """
    found: list[HostWait] = []
    first_uses = cost.first_uses()
    gpu_end = float("-inf")  # of the previous step
    alone = False  # whether the previous step found nothing in flight
    for k, step in enumerate(steps):
        time = step.time(cost)
        usual = time.prepare + time.launch
        kernels = 0.0 if first_uses is None else first_uses.compile(step.tokens, decode_only=not step.chunks)
        host = usual + kernels * cost.host.terms.compile
        start, launched = step.scheduled, step.scheduled + host
        if k and step.scheduled < steps[k - 1].updated:
            result = steps[k - 1].updated
            if not alone:
                start = steps[k - 2].updated
            if gpu_end - start < _BEHIND * host:
                found.append(HostWait(step, start, result - start, False, usual, kernels))
                launched = result
            else:
                launched = min(launched, result)
                gpu_end = max(result, launched)
            alone = False
        else:
            alone = True
            if k + 1 < len(steps) and steps[k + 1].scheduled < step.updated:
                launched = steps[k + 1].scheduled
                found.append(HostWait(step, start, launched - start, True, usual, kernels))
        gpu_end = max(max(gpu_end, start + time.prepare) + time.gpu, launched + time.tail)
    return found
