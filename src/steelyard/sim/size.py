"""Runs that are too large to be simulated. They are refused before they begin, or where times stop being exact."""

from __future__ import annotations

import numpy as np

from steelyard.errors import UserError
from steelyard.fleet import Desk
from steelyard.sim.setup import FleetSetup

MOST_STEPS = 200_000_000  # of all engines; each takes 8 bytes and up to some microseconds
MOST_SECONDS_OF_A_RUN = 1e10  # at which doubles still tell 2 microseconds apart


def check_steps(setup: FleetSetup, desk: Desk) -> None:
    """Refuse a run that has too many steps even if all batches are full."""
    served = np.ones(len(desk.output), dtype=np.bool_)
    served[list(desk.refused)] = False
    output = desk.output[served]
    if not len(output):
        return
    tokens = 1 + max(each.limits.speculative_tokens for each in setup.answers)
    seats = max(each.limits.max_num_seqs for each in setup.answers)
    decodes = max(float(output.sum()) / seats, float(output.max())) / tokens
    prompts = 0.0
    if desk.workload.content is None:  # otherwise cached tokens are not computed again
        budget = max(each.limits.max_num_batched_tokens for each in setup.takes_requests)
        prompts = float(desk.workload.prompt[served].sum()) / budget
    if max(decodes, prompts) > MOST_STEPS:
        kind = "output" if decodes > prompts else "prompt"
        raise UserError(
            f"{setup.scenario.source}: workload: {len(output):,} requests have so many {kind} tokens that engines make "
            f"at least {max(decodes, prompts):,.0f} steps; at most {MOST_STEPS:,} can be simulated: give fewer "
            f"requests or a shorter {kind}"
        )


def check_end(end: float, source: str) -> None:
    """Refuse the figures of a run that lasted so long that times are not exact."""
    if end > MOST_SECONDS_OF_A_RUN:
        raise UserError(
            f"{source}: the run lasts {end:.3g} s, and times are exact up to {MOST_SECONDS_OF_A_RUN:g} s; give shorter "
            "pauses and latencies, higher rates and bandwidths, or fewer requests"
        )
