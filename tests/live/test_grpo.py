"""A small model that learns under the controller: real engines, a real tool, a real trainer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from steelyard.live.grpo.run import GrpoRun
from steelyard.live.grpo.trainer import sample_of
from steelyard.live.journal import TurnJournal
from steelyard.scenario.live import GrpoScenario
from support.live_logs import check, check_replay
from support.live_parts import Parts

STEPS, PROMPTS, GROUP = 3, 2, 4


def new_run(folder: Path, **changes: Any) -> GrpoRun:
    settings: dict[str, Any] = {"steps": STEPS, "prompts": PROMPTS, "group": GROUP, "warm_up": 20, **changes}
    run = GrpoRun.at_free_ports(GrpoScenario(name="small", task="calculator", **settings), folder)
    run.write()
    return run


def carried_out(run: GrpoRun, killed: dict[int, str]) -> None:
    """Run to the end. Kills parts once there are so many events, and starts them again."""

    async def main() -> None:
        parts = Parts(run)
        parts.start(*run.parts)
        try:
            async with asyncio.timeout(300):
                for events, name in killed.items():
                    while not parts.controller.server.is_open or parts.controller.server.controller.events < events:
                        await asyncio.sleep(0.01)
                    await parts.kill(name)
                    parts.start(name)
                await parts.finished()
        finally:
            await parts.close()

    asyncio.run(main())
    check_replay(run.store)
    check(run.store, STEPS, PROMPTS * GROUP, whole=True)


def test_samples_of_the_journal_are_what_was_generated_and_trained_on(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    carried_out(run, {})
    rows = [json.loads(line) for line in (tmp_path / "rewards.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(STEPS))
    journal = TurnJournal(tmp_path / "journal.db")
    stored = journal.trajectory("0-0")
    assert stored is not None and stored.fate == "ended" and stored.reward is not None
    turns = [{"answer": turn.answer} for turn in stored.turns]
    sample = sample_of({"name": "0-0", "group": "0", "turns": turns, "reward": stored.reward})
    journal.close()
    assert sum(sample.generated) == len(sample.logprobs) == len(sample.versions) == stored.generated
    assert not sample.generated[0] and sample.generated[-1]
    assert all(value <= 0 for value in sample.logprobs)
    assert set(sample.versions) == {0}


@pytest.mark.parametrize("name", ["engine-0", "trainer"])
def test_a_part_that_dies_and_comes_back(tmp_path: Path, name: str) -> None:
    """An engine that is started anew has old weights, and gets the newest before it is used. A trainer goes on from its
    checkpoint."""
    run = new_run(tmp_path)
    carried_out(run, {20: name})
    rows = [json.loads(line) for line in (tmp_path / "rewards.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(STEPS))
