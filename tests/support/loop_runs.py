"""Small post-training runs whose rounds are listened to, and the books of such a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from steelyard.balance.commands import RoundCommand, Start
from steelyard.balance.events import Begun
from steelyard.balance.rounds import Rounds
from steelyard.balance.rounds.protocol import RoundInput
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.scenario import posttrain_from_dict
from support.whole_record import WholeRecord, kept

BLOCK = 64
SEARCH = {"preset": "search", "prompts": 6, "group": 3}
HEAVY = {**SEARCH, "prompts": 8, "work": {"median": 3, "by_task": 0.3, "by_sample": 1.2}}


def written(**more: Any) -> dict[str, Any]:
    return {
        "model": "qwen3-14b",
        "gpu": "a800",
        "trajectories": SEARCH,
        "rollout": [{"tp": 2, "replicas": 2}, {"tp": 1, "replicas": 1}],
        "training": {"tp": 8},
        "engine": {"block_size": BLOCK, "max_num_seqs": 8},
        "router": "least-outstanding",
        "estimator": "blind",
        "steps": 4,
        **more,
    }


class Overheard:
    """Rounds, and all that they were told and have commanded."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self.counts_tokens = rounds.counts_tokens
        self.events: list[RoundInput] = []
        self.commands: list[RoundCommand] = []

    def decide(self, event: RoundInput) -> list[RoundCommand]:
        commands = self._rounds.decide(event)
        self.events.append(event)
        self.commands += commands
        return commands

    def unfinished(self) -> list[str]:
        return self._rounds.unfinished()


@dataclass
class Ran:
    """A run, and what its rounds were told and have commanded."""

    setup: PosttrainSetup
    loop: Loop
    rounds: Overheard

    @property
    def begun(self) -> list[Begun]:
        """All that ever were."""
        return [event for event in self.rounds.events if isinstance(event, Begun)]

    @property
    def seconds(self) -> float:
        return self.loop.record.steps[-1].synced

    @property
    def rate(self) -> float:
        return sum(step.tokens for step in self.loop.record.steps) / self.seconds

    def samples(self, kind: str) -> list[str]:
        record = kept(self.loop.record)
        found = [each for batch in record.batches for each in batch] if kind == "trained" else record.dropped
        return [each.trajectory.id for each in found]


def ran(**more: Any) -> Ran:
    setup = set_up_posttrain(posttrain_from_dict(written(**more)))
    core = core_settings(setup).core()
    core.rounds = rounds = Overheard(core.rounds)
    run = Ran(setup, Loop(setup, core, record=WholeRecord()), rounds)
    run.loop.run()
    return run


def check(run: Ran) -> None:
    """The books of a run that is over."""
    scenario, record = run.setup.scenario, kept(run.loop.record)
    size = scenario.trajectories.group
    trained, thrown = run.samples("trained"), run.samples("thrown")
    assert len(record.steps) == len(record.batches) == scenario.steps
    wanted = [command for command in run.rounds.commands if isinstance(command, Start)]
    assert len(run.begun) == sum(len(each.groups) * each.samples for each in wanted), "not begun"
    assert len(set(trained)) == len(trained) and not set(trained) & set(thrown), "trained on twice"
    waiting = {each.trajectory.id for each in record.samples} - set(trained) - set(thrown)
    everybody = [*trained, *thrown, *waiting, *run.loop.stage.running]
    assert sorted(everybody) == sorted(each.trajectory for each in run.begun), "lost"
    for step, batch in enumerate(record.batches):
        groups = Counter(each.trajectory.prompt for each in batch)
        assert not any(count % size for count in groups.values()), "part of a group"
        assert record.steps[step].samples == len(batch) <= size * scenario.trajectories.prompts
        for each in batch:
            assert step - each.version >= 0, "from the future"
            assert step - each.version <= scenario.staleness_bound or scenario.admission.late == "train", "too old"
            assert each.version <= each.oldest <= max(each.versions) <= step
            assert each.generated == each.trajectory.generated, "tokens lost or made twice"
            turns = each.trajectory.turns
            assert each.context == each.trajectory.prompt_tokens + each.generated + sum(t.returned for t in turns[:-1])
    for each in record.dropped:
        assert each.generated <= each.trajectory.generated
    if scenario.tail.waits and scenario.admission.late != "drop":
        assert not thrown and all(len(batch) == size * scenario.trajectories.prompts for batch in record.batches)
