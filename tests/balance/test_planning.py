"""The part of the core that runs planners: a change that cannot be carried out is taken back."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

from steelyard.balance.log import Journal, is_event, read_event, read_header
from steelyard.balance.plan.questions import ChangePlan, PlanChanged, PlanRolledBack, PlanWanted
from steelyard.posttrain.run import posttrain
from steelyard.scenario import posttrain_from_dict

SCENARIO = {
    "model": "qwen3-14b",
    "gpu": "a800",
    "trajectories": {"preset": "math", "prompts": 4, "group": 4},
    "mode": "one-step-off",
    "planner": "libra",
    "rollout": [{"tp": 2, "replicas": 1}],
    "training": {"tp": 4, "dp": 4, "micro_batch_tokens": 24576},
    "engine": {"max_num_seqs": 64, "block_size": 64},
    "steps": 4,
    "seed": 1,
}


def test_a_change_that_is_rolled_back_is_not_proposed_again_at_once() -> None:
    log = StringIO()
    posttrain(posttrain_from_dict(SCENARIO), journal=Journal(log))
    header, *rows = [json.loads(line) for line in log.getvalue().splitlines()]
    core = read_header(header, "log").settings.core()
    wanted, change = None, None
    for row in filter(is_event, rows):
        envelope = read_event(row, "log")
        if isinstance(envelope.event, PlanWanted):
            wanted = envelope.event
        change = next((each for each in core.decide(envelope) if isinstance(each, ChangePlan)), None)
        if change is not None:
            break
    assert change is not None and wanted is not None and core.planning is not None
    planning = core.planning
    assert planning.pending == change and planning.plan.layout == change.plan.layout
    next_one = replace(wanted, step=wanted.step + 1)
    assert core.apply(next_one) == [] and core.dropped == {"out of order": 1}

    core.apply(PlanRolledBack(900.0, change.step, "engine 3 did not come up"))
    assert planning.pending is None and planning.plan.layout == change.now.layout
    for late in (PlanRolledBack(901.0, change.step, "again"), PlanChanged(902.0, change.step, 3.0)):
        assert core.apply(late) == []
    assert core.dropped == {"out of order": 1, "repeated": 2}
    assert core.apply(next_one) == [], "it rests"
    assert core.apply(replace(wanted, step=change.step + 5)) != [], "it plans again"
