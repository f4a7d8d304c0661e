"""Step times of attention/FFN units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steelyard.cost import Stretches
from steelyard.engine import EngineLog
from steelyard.sim.setup import Setup

_MOMENTS, _FEWEST = 512, 8  # sampled steps, of all engines and at least of each


def on_fullest_instance(done: Stretches, instances: int) -> Stretches:
    """The work of the fullest instance, with requests spread evenly over instances."""
    if instances == 1:
        return done
    return Stretches(
        steps=done.steps,
        decodes=-(-done.decodes // instances),
        decode_keys=-(-done.decode_keys // instances),
        prefill_tokens=-(-done.prefill_tokens // instances),
        prefill_requests=-(-done.prefill_requests // instances),
        prefill_pairs=-(-done.prefill_pairs // instances),
    )


def stalled(setup: Setup, logs: Sequence[EngineLog]) -> float | None:
    """Share of decode-only step time in which a pool's side waited for the other, from a sample of steps.

    None for pools that are not part of a unit. Requests of a stretch are assumed to be equally long.
    """
    if setup.unit is None:
        return None
    count = max(_FEWEST, _MOMENTS // max(1, len(logs)))
    waited = took = 0.0
    for log in logs:
        rows = log.stretches()
        rows = {name: rows[name][(rows["n_decode"] > 0) & (rows["prefill_tokens"] == 0)] for name in rows}
        if not len(rows["step"]):
            continue
        until = np.cumsum(log.end[rows["step"] + rows["steps"] - 1] - log.start()[rows["step"]])
        moments = (np.arange(count) + 0.5) / count * until[-1]
        for i in np.searchsorted(until, moments).tolist():
            n = int(rows["n_decode"][i])
            kv = int(rows["kv_decode"][i]) + n * (int(rows["steps"][i]) // 2)
            stalls = setup.unit.stalls(n, kv, -(-kv // n))
            waited += (stalls.ffn if setup.pool.role == "ffn" else stalls.attention) * until[-1] / count
        took += until[-1]
    return float(waited / took) if took else 0.0
