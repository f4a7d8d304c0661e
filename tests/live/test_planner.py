"""The planner of a live run: it changes the plan as its simulation does, also when the controller is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from steelyard.balance.plan import Bucket, Plan, TrainOption
from steelyard.cli.control_runs import as_live
from steelyard.errors import UserError
from steelyard.live.emulated.run import EmulatedRun
from steelyard.live.figures import LiveFigures, live_figures
from steelyard.live.operate import ask_controller
from steelyard.live.roster import Roster, roster_of, wanted_engines
from steelyard.live.supervise import Supervisor
from steelyard.posttrain.run import posttrain
from steelyard.posttrain.switch_plan import SwitchPlan
from steelyard.scenario import PosttrainScenario, posttrain_from_dict
from support.live_logs import check, check_replay

STEPS, PROMPTS, GROUP = 5, 4, 4
# One engine for 16 GPUs that train: every planner gives most GPUs to the rollout.
SCENARIO: dict[str, Any] = {
    "model": "qwen3-14b",
    "gpu": "a800",
    "trajectories": {"preset": "math", "prompts": PROMPTS, "group": GROUP},
    "mode": "one-step-off",
    "planner": "libra",
    "rollout": [{"tp": 2, "replicas": 1}],
    "training": {"tp": 4, "dp": 4, "micro_batch_tokens": 24576},
    "engine": {"max_num_seqs": 64, "block_size": 64},
    "steps": STEPS,
    "seed": 1,
}
Trouble = Callable[[EmulatedRun, Supervisor], Awaitable[None]]


def carried_out(folder: Path, trouble: Trouble | None = None) -> tuple[PosttrainScenario, LiveFigures]:
    scenario = posttrain_from_dict(SCENARIO)
    run = EmulatedRun.at_free_ports(scenario, folder, 80.0)
    run.write()

    async def main() -> None:
        supervisor = Supervisor(run)
        running = asyncio.ensure_future(supervisor.run())
        async with asyncio.timeout(240):
            if trouble is not None:
                await trouble(run, supervisor)
            await running

    asyncio.run(main())
    check_replay(run.store)
    check(run.store, STEPS, PROMPTS * GROUP, whole=True)
    return scenario, live_figures(run.store)


async def seen(run: EmulatedRun, table: str, kind: str) -> None:
    """Wait until the store has an event or a command of a kind."""
    query = f"SELECT COUNT(*) FROM {table} WHERE json_extract(line, '$.kind') = ?"
    while True:
        with suppress(sqlite3.Error):
            db = sqlite3.connect(f"{run.store.as_uri()}?mode=ro", uri=True, timeout=5)
            try:
                if db.execute(query, (kind,)).fetchone()[0]:
                    return
            finally:
                db.close()
        await asyncio.sleep(0.05)


def test_the_plan_changes_as_in_the_simulation(tmp_path: Path) -> None:
    scenario, found = carried_out(tmp_path)
    simulated = posttrain(as_live(scenario)).summary["reallocations"]
    assert [each.what for each in found.changes] == [each["what"] for each in simulated]
    (change,) = found.changes
    assert change.outcome == "done" and change.after
    assert change.seconds >= 0.99 * simulated[0]["seconds"]  # engines are not up before real ones would be
    engines = wanted_engines(tmp_path)
    assert engines is not None and sorted(tp for tp, _ in engines.values()) == [2, 4, 8]


def test_a_controller_that_is_killed_while_engines_move_goes_on(tmp_path: Path) -> None:
    async def trouble(run: EmulatedRun, supervisor: Supervisor) -> None:
        await seen(run, "commands", "ChangePlan")
        while wanted_engines(run.folder) == {0: (2, run.engines[0])}:
            await asyncio.sleep(0.02)
        os.kill(supervisor.pid("controller"), signal.SIGKILL)

    _, found = carried_out(tmp_path, trouble)
    assert [each.outcome for each in found.changes][:1] == ["done"]


def test_a_proposal_waits_for_an_operator(tmp_path: Path) -> None:
    async def ask(run: EmulatedRun, what: str) -> dict[str, Any]:
        return await asyncio.to_thread(ask_controller, run.address(), {"what": what})

    async def trouble(run: EmulatedRun, _: Supervisor) -> None:
        await seen(run, "events", "WeightsPublished")
        assert (await ask(run, "pause"))["paused"]
        with pytest.raises(UserError, match="no change of plan is proposed"):
            await ask(run, "apply")
        await seen(run, "commands", "ChangePlan")
        status = await ask(run, "plan")
        assert status["state"] == "waiting" and status["proposal"]["predicted_gain"] > 0
        while (await ask(run, "status"))["weights"] < 3:  # a weight sync has passed
            await asyncio.sleep(0.05)
        assert (await ask(run, "plan"))["state"] == "waiting"
        await ask(run, "apply")

    _, found = carried_out(tmp_path, trouble)
    assert [each.outcome for each in found.changes] == ["done"]


def test_a_roster_is_read_back() -> None:
    before, after = TrainOption("dp=2", 2), TrainOption("dp=1", 1)
    first = Roster.first([(0,), (1, 2)], (3, 4), [80, 81], Plan(before, (Bucket(1, 1, 0),), 1.0, 2.0, 3.0))
    change = SwitchPlan({1}, {(0, 4): 61.5}, (3,), 5.0)
    changed = first.changed(Plan(after, (), 0.0, 0.0, 0.0), change, 7, 100.0, [82])
    assert roster_of(json.loads(changed.to_json()), "store") == changed
    assert [(each.number, each.gpus, each.since) for each in changed.engines] == [(1, (1, 2), 0.0), (2, (0, 4), 161.5)]
    assert (changed.laid, changed.training, changed.started) == (105.0, (3,), 3)
