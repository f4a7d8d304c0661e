"""Every example runs: all that is asked is answered or refused with a reason, fast or one request at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from steelyard.scenario import load_scenario
from steelyard.sim import simulate
from support.paths import EXAMPLES

SCENARIOS = sorted(EXAMPLES.glob("*.yaml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_an_example_answers_what_it_is_asked(path: Path) -> None:
    few = load_scenario(path, ["workload.mix[0].requests=40"])
    fast, slow = simulate(few), simulate(few, plain=True)
    requests = fast.requests
    assert np.isfinite(requests["arrival"]).all()
    done = requests["status"] == "finished"
    assert done.mean() > 0.95 and all(requests["reason"][~done])
    assert (requests["ttft"][done] > 0).all() and (requests["e2e"][done] >= requests["ttft"][done]).all()
    for column in ("first_token", "finish"):
        assert requests[column][done] == pytest.approx(slow.requests[column][done], rel=1e-9)
    assert sum(pool.gpus for pool in fast.summary.pools) == fast.summary.gpus
