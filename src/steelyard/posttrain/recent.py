"""Recent measurements of a simulated loop."""

from __future__ import annotations

from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.batches import Batch, BatchShape, Recent, WholeBatches
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.record import StepRecord

__all__ = ["Batch", "EndedBatches", "Recent"]


class EndedBatches:
    """Watches a loop's trajectories end. Those of batches that began at the same second are a round."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        scenario = loop.setup.scenario
        asked = scenario.trajectories
        shape = BatchShape(asked.prompts * asked.group, asked.group, scenario.staleness_bound)
        self.batches: WholeBatches[Attempt] = WholeBatches(shape, lambda attempt: attempt.round)
        loop.record.watchers.append(self.batches.end)

    def latest(self, step: StepRecord) -> Recent | None:
        """As `WholeBatches.latest`, after a step."""
        stage = self._loop.stage
        running = {attempt.round for attempt in stage.running.values()}
        seats = sum(self._loop.setup.kinds[tp].limits.max_num_seqs for tp in stage.tp.values())
        seats = max(1, seats)  # there may be no engine while a change is under way
        synced = [each.synced for each in self._loop.record.steps]
        return self.batches.latest(step.step, running, seats, synced)
