"""An example and its variations, each simulated once however many panels look at it."""

from __future__ import annotations

from pathlib import Path

from steelyard import Result, load_scenario, simulate

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


class Runs:
    """Results of one scenario file by what was changed in it, in the words of ``--set``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._results: dict[tuple[str, ...], Result] = {}

    def __call__(self, *changes: str) -> Result:
        """The result with these changes."""
        if changes not in self._results:
            self._results[changes] = simulate(load_scenario(self.path, list(changes)))
        return self._results[changes]
