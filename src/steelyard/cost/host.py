"""Host time of a step: preparing inputs and launching kernels.

With asynchronous scheduling the host works ahead, so a step takes whichever is longer, GPU or host; without it
the scheduling and result handling of each step come on top.

The defaults were measured with vLLM 0.26 on an H200 host (`docs/profiles.md`): time to first token of lone prompts of
16-256 tokens (captured pieces) and 320-512 tokens (no graph) of models with 18, 24 and 36 layers, where the GPU is done
long before the host has launched everything. Hosts differ; a slower one makes mixed steps slower, and only those.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_SECONDS = 1.5e-3  # inputs of a step, sampling set-up, hand-over between processes
SEQUENCE_SECONDS = 2.0e-6  # per request of the batch
GRAPH_LAUNCH_SECONDS = 0.15e-3  # replay of one whole captured step
PIECES_SECONDS = 0.29e-3  # one layer as captured pieces around an attention call
EAGER_SECONDS = 0.53e-3  # one dense layer without a graph
EAGER_EXPERTS_SECONDS = 0.90e-3  # what routed experts add to that
SERIAL_SECONDS = 1.2e-3  # schedule, update and output of a step when nothing overlaps


@dataclass(frozen=True)
class HostCost:
    """Host seconds by how a step is launched."""

    layers: int
    expert_layers: int  # those of them with routed experts
    overlapped: bool  # asynchronous scheduling

    def launch(self, sequences: int, *, captured: bool, whole: bool) -> float:
        """Seconds until the last kernel of a step is on its way."""
        if captured and whole:
            launch = GRAPH_LAUNCH_SECONDS
        elif captured:
            launch = self.layers * PIECES_SECONDS
        else:
            launch = self.layers * EAGER_SECONDS + self.expert_layers * EAGER_EXPERTS_SECONDS
        return STEP_SECONDS + sequences * SEQUENCE_SECONDS + launch

    @property
    def serial(self) -> float:
        """Seconds of every step in which the GPU waits for the host."""
        return 0.0 if self.overlapped else SERIAL_SECONDS
