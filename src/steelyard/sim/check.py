"""Invariants of serving results: `check` raises if a result cannot be true.

Only parts that a result has are checked, so it works on results of ``keep=`` and on those read from a folder. It never
expands the table of steps, and costs little beside the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from steelyard.engine import EngineLog
from steelyard.sim.invariants import Invariants
from steelyard.sim.result import Column, Result
from steelyard.sim.summary import KvUse, Latency, PoolFigures, PrefixCache, Provenance, Steady, Summary, Throughput

_MOMENTS = ("arrival", "taken", "scheduled", "first_token", "finish")  # of a request, in their order
_COUNTS = ("prompt", "output", "cached", "preemptions", "retries")


def check(result: Result, *, scaled: bool = False) -> None:
    """Raise `BrokenResult`, naming every violated invariant, unless a result holds together.

    If the times of operators were ``scaled``, GPUs may do more than they can.
    """
    found = Invariants()
    if result.has("summary"):
        _summary(found, result.summary)
        if not scaled:
            _peaks(found, result.summary)
    if result.has("requests"):
        _requests(found, result.requests)
    if result.has("summary") and result.has("requests"):
        _summary_of_requests(found, result.summary, result.requests)
    if result.has("logs"):
        for replica, log in enumerate(result.logs):
            _log(found, f"replica {replica}", log)
        if result.has("requests") and result.has("scenario"):
            _tokens(found, result)
    elif result.has("steps"):
        _steps(found, result.steps)
    found.done()


def _summary(found: Invariants, got: Summary) -> None:
    found.finite("summary", got.to_dict())
    outcomes = got.outcomes
    ended = outcomes.finished + outcomes.rejected + outcomes.aborted + outcomes.unfinished
    found.expect(ended == got.requests, f"outcomes add up to {ended} requests, not {got.requests}")
    for name, latency in got.latencies.items():
        _latency(found, name, latency, None if name == "itl" else outcomes.finished)
    for name in ("ttft", "e2e", "queue"):
        count = got.latencies[name].count
        found.expect(count == outcomes.finished, f"{name} is of {count} requests; {outcomes.finished} finished")
    _throughput(found, "throughput", got.throughput)
    found.same("throughput.requests_per_s * duration_s", *_requests_in(got), "the number of finished requests")
    _goodput(found, got)
    for limit, verdict in got.slo.items():
        meets = verdict.value is not None and verdict.value <= verdict.limit
        found.expect(verdict.met == meets, f"slo.{limit}: {verdict.value!r} is said to be met={verdict.met}")
    found.shares({"busy": got.busy})
    _kv(found, "kv", got.kv)
    _provenance(found, "provenance", got.provenance)
    _prefix_cache(found, got.prefix_cache)
    _cost(found, got)
    _memory(found, got)
    if got.steady is not None:
        _steady(found, got.steady, got.requests)
    for pool in got.pools:
        _pool(found, pool)
    _whole_of_pools(found, got)
    _optional_parts(found, got)


def _peaks(found: Invariants, got: Summary) -> None:
    """No GPU does more than its data sheet says."""
    found.shares({"mfu": got.mfu, "mbu": got.mbu})
    for pool in got.pools:
        found.shares({f"pool {pool.name}: mfu": pool.mfu, f"pool {pool.name}: mbu": pool.mbu})


def _requests_in(got: Summary) -> tuple[float, float]:
    """Finished requests by throughput and by count; a run without duration has no throughput."""
    return got.throughput.requests_per_s * got.duration_s, got.outcomes.finished if got.duration_s > 0 else 0


def _latency(found: Invariants, name: str, latency: Latency, most: int | None) -> None:
    found.spread(name, latency.levels)
    known = latency.mean is not None
    found.expect(known == (latency.count > 0), f"{name} is of {latency.count} values, with a mean of {latency.mean}")
    found.expect(most is None or latency.count <= most, f"{name} is of {latency.count} requests; {most} finished")


def _throughput(found: Invariants, name: str, got: Throughput) -> None:
    total = got.input_tokens_per_s + got.output_tokens_per_s
    found.same(f"{name}.total_tokens_per_s", got.total_tokens_per_s, total, "input and output")
    for figure, value in got.to_dict().items():
        found.expect(value >= 0, f"{name}.{figure} is {value!r}")


def _goodput(found: Invariants, got: Summary) -> None:
    good = got.goodput
    found.shares({"goodput.share": good.share})
    if good.requests_per_s is not None:
        most = got.throughput.requests_per_s
        found.rising("goodput", {"zero": 0.0, "requests_per_s": good.requests_per_s, "throughput": most})


def _kv(found: Invariants, name: str, kv: KvUse) -> None:
    found.rising(name, {"zero": 0.0, "mean_use": kv.mean_use, "peak_use": kv.peak_use, "one": 1.0})


def _provenance(found: Invariants, name: str, got: Provenance) -> None:
    parts = got.to_dict()
    found.shares({f"{name}.{kind}": share for kind, share in parts.items()})
    total = sum(parts.values())
    if total:  # of no time at all there are no shares
        found.same(f"the sum of {name}", total, 1.0, "all")


def _prefix_cache(found: Invariants, got: PrefixCache) -> None:
    found.shares({"prefix_cache.hit_rate": got.hit_rate})
    found.rising("prefix_cache", {"zero": 0.0, "hit_tokens": got.hit_tokens, "prompt_tokens": got.prompt_tokens})
    for tier, part in got.by_tier.items():
        found.shares({f"prefix_cache.by_tier.{tier}.hit_rate": part.hit_rate})
    if got.by_tier:
        total = sum(part.hit_tokens for part in got.by_tier.values())
        found.expect(total == got.hit_tokens, f"prefix_cache: tiers have {total} of {got.hit_tokens} hit_tokens")


def _cost(found: Invariants, got: Summary) -> None:
    cost = got.cost
    for name, value in cost.to_dict().items():
        found.expect(value is None or value >= 0, f"cost.{name} is {value!r}")
    found.same("cost.usd", cost.usd, cost.usd_per_gpu_hour * got.gpu_hours, "price * gpu_hours")
    most = got.gpus * got.duration_s / 3600
    found.rising("GPU hours", {"zero": 0.0, "gpu_hours": got.gpu_hours, "gpus * duration_s": most})


def _memory(found: Invariants, got: Summary) -> None:
    memory = got.memory
    used = memory.weights_bytes + memory.activation_bytes + memory.runtime_bytes + memory.kv_bytes
    used += memory.draft_bytes or 0
    found.rising("memory", {"used": used, "usable": memory.usable_bytes, "total": memory.total_bytes})


def _steady(found: Invariants, got: Steady, requests: int) -> None:
    found.rising("steady", {"zero": 0.0, "start_s": got.start_s, "end_s": got.end_s})
    found.same("steady.seconds", got.seconds, got.end_s - got.start_s, "the length of the window")
    found.rising("steady", {"zero": 0, "requests": got.requests, "all requests": requests})
    for name, latency in (("ttft", got.ttft), ("tpot", got.tpot), ("e2e", got.e2e)):
        _latency(found, f"steady.{name}", latency, got.requests)
    _throughput(found, "steady.throughput", got.throughput)
    found.shares({"steady.goodput.share": got.goodput.share})
    for name, interval in got.sampling.items():
        found.rising(f"steady.sampling.{name}", dict(zip(("low", "high"), interval, strict=True)))


def _pool(found: Invariants, pool: PoolFigures) -> None:
    name = f"pool {pool.name}"
    found.shares(
        {
            f"{name}: busy": pool.busy,
            f"{name}: stalled": pool.stalled,
            f"{name}: pipeline_bubble": pool.pipeline_bubble,
        }
    )
    _kv(found, f"{name}: kv", pool.kv)
    _provenance(found, f"{name}: provenance", pool.provenance)
    if pool.step_time is not None:
        parts = pool.step_time.to_dict()
        found.shares({f"{name}: step_time.{part}": share for part, share in parts.items()})
        found.same(f"{name}: the sum of step_time", sum(parts.values()), 1.0, "all")
    if pool.acceptance_length is not None:
        found.expect(pool.acceptance_length >= 0, f"{name}: acceptance_length is {pool.acceptance_length!r}")


def _whole_of_pools(found: Invariants, got: Summary) -> None:
    gpus = sum(pool.gpus for pool in got.pools)
    found.expect(gpus == got.gpus, f"pools have {gpus} GPUs, the fleet {got.gpus}")
    steps = sum(pool.steps for pool in got.pools if pool.role != "ffn")  # those of its attention pool
    found.expect(steps == got.steps, f"pools ran {steps} steps, the fleet {got.steps}")


def _optional_parts(found: Invariants, got: Summary) -> None:
    if got.models:
        total = sum(model.requests for model in got.models.values())
        found.expect(total == got.requests, f"models have {total} requests, the fleet {got.requests}")
        for name, model in got.models.items():
            found.expect(model.finished <= model.requests, f"model {name}: more requests finished than came")
    if got.dynamics is not None:
        up, held = got.dynamics.gpu_hours_up, got.gpu_hours
        found.rising("dynamics", {"zero": 0.0, "gpu_hours_up": up, "gpu_hours": held})
        once, often = got.dynamics.retried_requests, got.dynamics.retries
        found.rising("dynamics", {"retried_requests": once, "retries": often})
    if got.intervals is not None:
        for name, (low, high) in got.intervals.bounds.items():
            found.rising(f"intervals.{name}", {"low": low, "high": high})
    for name, link in got.links.items():
        found.rising(f"link {name}", {"zero": 0.0, "mean_use": link.mean_use, "peak_use": link.peak_use, "one": 1.0})
        found.shares({f"link {name}: busy": link.busy})


def _requests(found: Invariants, table: Mapping[str, Column]) -> None:
    count = len(table["id"])
    for name, column in table.items():
        found.expect(len(column) == count, f"requests.{name} has {len(column)} rows of {count}")
    for earlier, later in pairwise(_MOMENTS):
        _none(found, table[earlier] > table[later], f"{later} before {earlier}")
    finished = table["status"] == "finished"
    for name in _MOMENTS:
        _none(found, finished & ~np.isfinite(table[name]), f"finished without {name}")
        _none(found, np.isinf(table[name]) | (table[name] < 0), f"{name} not a second of the run")
    for name in _COUNTS:
        _none(found, table[name] < 0, f"{name} below 0")
    _none(found, table["cached"] > table["prompt"], "more cached than its prompt")
    _none(found, finished & (table["output"] < 1), "finished without a token")
    _none(found, finished & (table["replica"] < 0), "finished on no replica")
    refused = table["status"] == "rejected"
    _none(found, refused & (table["reason"] == ""), "rejected without a reason")
    _none(found, refused & np.isfinite(table["first_token"]), "rejected with a first token")


def _none(found: Invariants, wrong: Column, what: str) -> None:
    """No row may be so; the first that is gets named."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        found.expect(False, f"{len(rows)} requests with {what}, the first is request {rows[0]}")


def _summary_of_requests(found: Invariants, got: Summary, table: Mapping[str, Column]) -> None:
    found.expect(len(table["id"]) == got.requests, f"{len(table['id'])} rows of requests, not {got.requests}")
    status = table["status"]
    for name in ("finished", "rejected", "aborted", "unfinished"):
        rows, told = int((status == name).sum()), getattr(got.outcomes, name)
        found.expect(rows == told, f"{rows} requests are {name}, the summary has {told}")
    finished = status == "finished"
    seconds = got.duration_s
    if seconds > 0:
        for figure, column in (("input", "prompt"), ("output", "output")):
            rate, tokens = getattr(got.throughput, f"{figure}_tokens_per_s"), int(table[column][finished].sum())
            found.same(f"throughput.{figure}_tokens_per_s * duration_s", rate * seconds, tokens, "their tokens")
    preemptions = int(table["preemptions"].sum())
    found.expect(preemptions == got.preemptions, f"{got.preemptions} preemptions, requests have {preemptions}")
    served = np.isfinite(table["scheduled"])
    hits = int(table["cached"][served].sum())
    found.expect(hits == got.prefix_cache.hit_tokens, f"{got.prefix_cache.hit_tokens} hit_tokens, requests have {hits}")


def _log(found: Invariants, name: str, log: EngineLog) -> None:
    """Steps of one engine: none ends before it starts, none starts before the one before has ended."""
    end, start = log.end, log.start()
    found.expect(np.isfinite(end).all(), f"{name}: a step without an end")
    found.expect((start <= end).all(), f"{name}: a step ends before it starts")
    found.expect((end[:-1] <= start[1:]).all(), f"{name}: a step starts before the one before has ended")
    rows = log.stretches()
    for column in ("n_decode", "kv_decode", "prefill_tokens", "prefill_requests", "running", "waiting", "free_blocks"):
        found.expect((rows[column] >= 0).all(), f"{name}: a step with {column} below 0")
    found.expect((rows["prefill_tokens"] >= rows["prefill_requests"]).all(), f"{name}: a prefill of no tokens")


def _steps(found: Invariants, table: Mapping[str, Column]) -> None:
    """The same of a table of steps."""
    replica, start, end = table["replica"], table["start"], table["end"]
    found.expect((start <= end).all(), "a step ends before it starts")
    follows = replica[1:] == replica[:-1]
    found.expect((end[:-1] <= start[1:])[follows].all(), "a step starts before the one before has ended")


def _tokens(found: Invariants, result: Result) -> None:
    """Steps computed every token of finished requests that no cache had, and no other if nothing was done twice.

    The last token of a request is never computed. A step with drafts gives several tokens, so only prompts are
    counted then. With prefill/decode disaggregation the first token may cost a decode of its own. SGLang computes a
    token more where clients allow more than a request gives: it has scheduled the next step before the last is known.
    """
    table, scenario = result.requests, result.scenario
    finished = table["status"] == "finished"
    needed = int((table["prompt"] - table["cached"])[finished].sum())
    computed = 0
    for log in result.logs:
        rows = log.stretches()
        computed += int((rows["prefill_tokens"] + rows["n_decode"] * rows["steps"]).sum())
    engines = [scenario.engine_of(pool) for pool in scenario.fleet.pools]
    drafts = any(engine.drafts for engine in engines)
    if not drafts:
        needed += int((table["output"] - 1)[finished].sum())
    told = f"steps computed {computed} tokens, finished requests needed {needed}"
    found.expect(computed >= needed, told)
    once = finished.all() and not table["preemptions"].any() and not table["retries"].any()
    surprised = any(engine.scheduler == "sglang" and engine.sglang.max_new_tokens for engine in engines)
    if once and not surprised and not drafts and "decode_replica" not in table:
        found.expect(computed == needed, told)
