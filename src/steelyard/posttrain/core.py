"""The settings of a scenario's decision core, in plain numbers."""

from __future__ import annotations

from steelyard.balance.plan.by_name import PlannerSettings
from steelyard.balance.pool import PoolRules
from steelyard.balance.rounds import RoundSettings
from steelyard.balance.settings import CoreSettings
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.tails import tail_of


def core_settings(setup: PosttrainSetup, planner: PlannerSettings | None = None) -> CoreSettings:
    """The policies of a scenario and the figures of its engines. ``planner`` is given if it plans during the run."""
    scenario = setup.scenario
    asked = scenario.trajectories
    return CoreSettings(
        router=scenario.router,
        estimator=scenario.estimator,
        seed=scenario.seed,
        speeds=tuple((tp, kind.speed()) for tp, kind in sorted(setup.kinds.items())),
        rounds=RoundSettings(
            scenario.steps,
            asked.prompts,
            asked.group,
            scenario.staleness_bound,
            scenario.streaming,
            scenario.synchronous,
            scenario.lead,
            scenario.tail.waits,
            scenario.admission.concurrency,
            scenario.admission.late,
        ),
        tail=tail_of(setup),
        pool=None if scenario.pool == "none" else PoolRules(scenario.pool, overlapped=scenario.staleness_bound > 0),
        planner=planner,
        queue_cap=scenario.queue_cap,
    )
