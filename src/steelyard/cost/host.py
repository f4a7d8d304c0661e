"""Host time of a step: preparing inputs and launching kernels.

With asynchronous scheduling the host works ahead, so a step takes whichever is longer, GPU or host; without it
the scheduling and result handling of each step come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_SECONDS = 0.9e-3  # inputs of a step, sampling set-up, hand-over between processes
SEQUENCE_SECONDS = 2.0e-6  # per request of the batch
GRAPH_LAUNCH_SECONDS = 0.15e-3  # replay of one whole captured step
PIECE_LAUNCH_SECONDS = 45e-6  # one layer as captured pieces around an attention call
EAGER_LAUNCH_SECONDS = 6e-6  # one kernel launched by itself
SERIAL_SECONDS = 1.2e-3  # schedule, update and output of a step when nothing overlaps


@dataclass(frozen=True)
class HostCost:
    """Host seconds by how a step is launched."""

    layers: int
    kernels: int  # of a whole step
    overlapped: bool  # asynchronous scheduling

    def launch(self, sequences: int, *, captured: bool, whole: bool) -> float:
        """Seconds until the last kernel of a step is on its way."""
        if captured and whole:
            launch = GRAPH_LAUNCH_SECONDS
        elif captured:
            launch = self.layers * PIECE_LAUNCH_SECONDS
        else:
            launch = self.kernels * EAGER_LAUNCH_SECONDS
        return STEP_SECONDS + sequences * SEQUENCE_SECONDS + launch

    @property
    def serial(self) -> float:
        """Seconds of every step in which the GPU waits for the host."""
        return 0.0 if self.overlapped else SERIAL_SECONDS
