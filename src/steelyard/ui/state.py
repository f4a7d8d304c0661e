"""What all routes of the page share."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi.responses import JSONResponse

from steelyard.ui.checking import ScenarioList
from steelyard.ui.folder import UiFolder
from steelyard.ui.jobs import StartedRuns
from steelyard.ui.listing import Listing
from steelyard.ui.live import FollowedRuns
from steelyard.ui.results import Results
from steelyard.ui.whatif import Curves


@dataclass
class PageState:
    """The folder, what is known of it, and what is under way."""

    folder: UiFolder
    curves: Curves
    runs: StartedRuns = field(init=False)
    listing: Listing = field(init=False)
    scenarios: ScenarioList = field(init=False)
    results: Results = field(default_factory=Results)
    live: FollowedRuns = field(default_factory=FollowedRuns)

    def __post_init__(self) -> None:
        self.runs, self.listing = StartedRuns(self.folder), Listing(self.folder)
        self.scenarios = ScenarioList(self.folder)


def refusal(status: int, *lines: str) -> JSONResponse:
    """An answer that says what was wrong."""
    return JSONResponse({"errors": list(lines)}, status)
