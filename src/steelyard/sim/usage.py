"""Use of pools: GPUs, KV blocks, and the provenance of their step times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steelyard.cost import PROVENANCES, Stretches
from steelyard.engine import FINISHED, Engine, EngineLog
from steelyard.records import Ints
from steelyard.sim.pipelines import bubble
from steelyard.sim.setup import FleetSetup, Setup
from steelyard.sim.spread import Column
from steelyard.sim.summary import KvUse, PoolFigures, Provenance, StepShares
from steelyard.sim.units import on_fullest_instance, stalled


def pool_figures(
    setup: FleetSetup, engines: Sequence[Engine], output: Ints, duration: float, present: Sequence[float]
) -> tuple[PoolFigures, ...]:
    """Figures of each pool.

    ``output`` is the output length of each request. ``present`` is, by pool, the mean share of replicas that held GPUs.
    """
    found = []
    first = 0
    own: Sequence[Engine] = []
    for each, share in zip(setup.pools, present, strict=True):
        if each.pool.role != "ffn":  # FFN pools work in the steps of their attention pool
            own = engines[first : first + each.ranks]
        found.append(_pool(setup, each, own, output, first, duration * share))
        first += each.ranks
    return tuple(found)


def _pool(
    setup: FleetSetup, each: Setup, engines: Sequence[Engine], output: Ints, first: int, duration: float
) -> PoolFigures:
    """Figures of one pool. Time without steps counts as idle."""
    logs = [engine.log for engine in engines]
    total, room = each.limits.blocks, duration * len(logs)
    busy, held, fewest = _blocks(logs, total)
    done = work_done(logs)
    by_provenance = each.cost.by_provenance(on_fullest_instance(done, each.spread))
    return PoolFigures(
        name=each.pool.name,
        role=each.pool.role,
        gpu=each.gpu.name,
        gpus=each.gpus,
        replicas=each.ranks,
        first_replica=first,
        tp=each.pool.tp,
        layout=str(each.layout),
        steps=sum(log.ran for log in logs),
        kv=KvUse(
            blocks_per_replica=total,
            block_size=each.limits.block_size,
            mean_use=held / (total * room) if total and room > 0 else 0.0,
            peak_use=1 - fewest / total if total else 0.0,
        ),
        mfu=each.work.seconds_at_peak(done) / room if room > 0 else 0.0,
        mbu=each.work.bytes(done) / (each.gpu.memory_bandwidth * room) if room > 0 else 0.0,
        busy=busy / room if room > 0 else 0.0,
        provenance=_provenance(by_provenance),
        stalled=stalled(each, logs),
        pipeline_bubble=bubble(engines) if each.ranks else None,
        model=each.serves if len(setup.models) > 1 else None,
        step_time=_step_shares(each, done, float(by_provenance.sum()), busy),
        acceptance_length=_acceptance_length(each, logs, output),
    )


def _step_shares(setup: Setup, done: Stretches, gpu: float, busy: float) -> StepShares | None:
    """What GPUs did during steps. The rest of the time they waited for the host."""
    if setup.unit is not None or setup.stages or not busy:
        return None
    whole = max(busy, gpu)
    shares = {name: seconds / whole for name, seconds in setup.cost.by_family(done, gpu).items()}
    return StepShares(**shares, host=max(0.0, 1 - sum(shares.values())))


def _acceptance_length(setup: Setup, logs: Sequence[EngineLog], output: Ints) -> float | None:
    """Mean tokens per decode step of a request with drafts. The first token comes from prefill."""
    if not setup.engine.drafts or setup.pool.role == "prefill":
        return None
    tokens = passes = 0
    for log in logs:
        done = log.ended["status"] == FINISHED
        tokens += int((output[log.ended["index"][done].astype(np.int64)] - 1).sum())
        passes += int((log.ended["last"] - log.ended["first"])[done].sum()) // log.stride
        passes -= sum(after - before - 1 for before, after in log.breaks)
    return tokens / passes if passes > 0 else None


def _blocks(logs: Sequence[EngineLog], total: int) -> tuple[float, float, int]:
    """Seconds in steps, block-seconds in use during them, and the fewest free blocks."""
    busy = held = 0.0
    fewest = total
    for log in logs:
        if not len(log.ends):
            continue
        rows = log.stretches()
        took = log.end[rows["step"] + rows["steps"] - 1] - log.start()[rows["step"]]
        busy += float(took.sum())
        free = (rows["free_blocks"] + rows["free_after"]) / 2
        held += float(((total - free) * took).sum())
        fewest = min(fewest, int(rows["free_blocks"].min()), int(rows["free_after"].min()))
    return busy, held, fewest


def work_done(logs: Sequence[EngineLog]) -> Stretches:
    """All steps that ran a batch."""
    tables = []
    for log in logs:
        if len(log.ends):
            rows = log.stretches()
            ran = rows["n_decode"] + rows["prefill_requests"] > 0
            tables.append({name: column[ran] for name, column in rows.items()})

    def column(name: str) -> Column:
        return np.concatenate([table[name] for table in tables]) if tables else np.empty(0, dtype=np.int64)

    steps, decodes = column("steps"), column("n_decode")
    return Stretches(
        steps=steps,
        decodes=decodes,
        decode_keys=column("kv_decode") * steps + decodes * (steps * (steps - 1) // 2),
        prefill_tokens=column("prefill_tokens"),
        prefill_requests=column("prefill_requests"),
        prefill_pairs=column("prefill_pairs"),
    )


def _provenance(seconds: Column) -> Provenance:
    """Share of GPU time by kind of cost figure."""
    total = float(seconds.sum())
    shares = [float(part) / total if total else 0.0 for part in seconds]
    return Provenance(**dict(zip(PROVENANCES, shares, strict=True)))
