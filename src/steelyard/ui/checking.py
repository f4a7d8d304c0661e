"""Checks what stands in the editor: the messages of the command line, each with the line that it is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from steelyard.errors import UserError, quoted
from steelyard.files.jsontext import parse_json
from steelyard.files.limits import MOST_SCENARIO_BYTES
from steelyard.files.reading import read_text
from steelyard.files.yamltext import Document
from steelyard.scenario import PosttrainScenario, Scenario
from steelyard.scenario.base import Written
from steelyard.scenario.live import GrpoScenario
from steelyard.scenario.problems import Path as KeyPath
from steelyard.scenario.problems import dotted, findings
from steelyard.scenario.search import SearchScenario
from steelyard.ui.folder import UiFolder

ScenarioKind = Literal["serving", "search", "posttrain", "learning"]
KINDS: dict[ScenarioKind, type[Written]] = {
    "serving": Scenario,
    "search": SearchScenario,
    "posttrain": PosttrainScenario,
    "learning": GrpoScenario,
}
_POSTTRAIN_KEYS = {"trajectories", "rollout", "training"}


@dataclass(frozen=True)
class Problem:
    """A mistake, and where it is: a line from 1 on, and a key path; 0 and none if it is about the whole."""

    line: int
    key: str
    message: str


@dataclass(frozen=True)
class CheckedText:
    """What a text is: its kind, the scenario if it is one, and its mistakes if not."""

    kind: ScenarioKind
    scenario: Written | None
    problems: tuple[Problem, ...]

    @property
    def whole(self) -> Written:
        """The scenario. Raises UserError if the text has mistakes."""
        if self.scenario is None:
            raise UserError(*(f"line {each.line}: {each.message}" for each in self.problems))
        return self.scenario


def kind_of_data(data: dict[str, Any]) -> ScenarioKind:
    """Which kind of scenario its keys are of."""
    if "search" in data:
        return "search"
    if "task" in data:
        return "learning"
    return "posttrain" if _POSTTRAIN_KEYS & data.keys() else "serving"


def check_text(text: str, name: str, folder: UiFolder) -> CheckedText:
    """Check a text that is, or would be, a file of the folder."""
    try:
        document = _read(text, name)
    except UserError as error:
        line, message = _split(str(error.args[0]), name)
        return CheckedText("serving", None, (Problem(line, "", message),))
    data = document.data
    if not isinstance(data, dict):
        held = "is empty" if data is None else f"holds {'a list' if isinstance(data, list) else quoted(data)}"
        what = f"{held}; a scenario is a mapping with model, fleet and workload"
        return CheckedText("serving", None, (Problem(1, "", what),))
    kind = kind_of_data(data)
    try:
        scenario = KINDS[kind].model_validate({"name": Path(name).stem, **data})
    except ValidationError as error:
        found = tuple(_problem(document, path, sentence) for path, sentence in findings(error, data))
        return CheckedText(kind, None, found)
    outside = tuple(
        _problem(document, path, f"{quoted(value)} lies outside the folder of this page; copy it there")
        for path, value in folder.named_outside(scenario.model_dump(mode="json", exclude={"name"}), folder.root)
    )
    return CheckedText(kind, None if outside else scenario.based_in(folder.root, name), outside)


def _read(text: str, name: str) -> Document:
    if len(text.encode(errors="replace")) > MOST_SCENARIO_BYTES:
        raise UserError(f"{name}: more than {MOST_SCENARIO_BYTES:,} bytes; give a smaller file")
    if name.endswith(".json") and text.strip():
        parse_json(text, name)  # JSON is YAML, but some YAML is not JSON
    return Document(text, name)


def _problem(document: Document, path: KeyPath, sentence: str) -> Problem:
    key = dotted(path)
    return Problem(document.line_of(path) or 1, key, f"{key}: {sentence}" if key else sentence)


def _split(message: str, name: str) -> tuple[int, str]:
    """Line and rest of a message that begins with NAME:LINE."""
    rest = message.removeprefix(name)
    number, _, told = rest.removeprefix(":").partition(": ")
    if number.isascii() and number.isdigit() and len(number) < 10:
        return int(number), told
    return 1, rest.removeprefix(": ")


def refused(error: UserError, text: str, name: str) -> list[Problem]:
    """What is found to be wrong when engines are set up, such as a model that does not fit its GPUs, at its key."""
    document = Document(text, name)
    found = []
    for each in error.args:
        message = str(each).removeprefix(f"{name}: ")
        key, colon, told = message.partition(": ")
        path = tuple(key.split(".")) if colon and " " not in key else ()
        found.append(Problem(document.line_of(path) or 1, key if path else "", f"{key}: {told}" if path else message))
    return found


class ScenarioList:
    """Scenario files with their kinds, each read again only where it has changed."""

    def __init__(self, folder: UiFolder) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int], ScenarioKind | None]] = {}

    def rows(self) -> list[tuple[str, ScenarioKind | None, float]]:
        """Name, kind (None of a file that cannot be read) and time of each, by name."""
        found, rows = {}, []
        for entry in self._folder.scenarios():
            stat = entry.stat(follow_symlinks=False)
            known = self._known.get(entry.name)
            if known is None or known[0] != (stat.st_mtime_ns, stat.st_size):
                known = (stat.st_mtime_ns, stat.st_size), _kind_of_file(Path(entry.path))
            found[entry.name] = known
            rows.append((entry.name, known[1], stat.st_mtime))
        self._known = found
        return rows


def _kind_of_file(path: Path) -> ScenarioKind | None:
    try:
        data = Document(read_text(path, MOST_SCENARIO_BYTES), path.name).data
    except UserError:
        return None
    return kind_of_data(data) if isinstance(data, dict) else None
