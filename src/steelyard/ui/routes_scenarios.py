"""Scenario files: opened, checked, saved; and what-if curves of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from steelyard.errors import UserError
from steelyard.files.limits import MOST_SCENARIO_BYTES
from steelyard.files.reading import read_text
from steelyard.files.writing import write_text
from steelyard.records.jsontext import compact
from steelyard.scenario import Scenario
from steelyard.ui.checking import CheckedText, check_text, refused
from steelyard.ui.folder import UiFolder
from steelyard.ui.knobs import RATES, Knobs, ranges
from steelyard.ui.knowledge import editor_knowledge
from steelyard.ui.points import PointTask
from steelyard.ui.starting import STARTERS, starter_text
from steelyard.ui.state import PageState, refusal

_NEW = ""  # the version of a file that is not there yet


class TextBody(BaseModel):
    """A scenario's text; ``version`` is that of the file that was opened."""

    name: str
    text: str
    version: str = _NEW


class CurveBody(BaseModel):
    """What-if settings of a tab."""

    tab: str = Field(max_length=80)
    name: str
    knobs: dict[str, Any] = Field(default_factory=dict)
    known: list[float] = Field(default_factory=list, max_length=1000)  # rates of points that it has


def add_scenarios(app: FastAPI, state: PageState) -> None:
    folder = state.folder

    @app.get("/api/home")
    def home() -> dict[str, Any]:
        shown = [{"name": name, "kind": kind, "modified": at} for name, kind, at in state.scenarios.rows()]
        return {"folder": str(folder.root), "version": version("steelyard"), "scenarios": shown, "starters": STARTERS}

    @app.get("/api/starters/{name}")
    def starter(name: str) -> dict[str, str]:
        return {"text": starter_text(name)}

    @app.get("/api/scenarios/{name}")
    def scenario(name: str) -> dict[str, str]:
        text = read_text(folder.scenario(name), MOST_SCENARIO_BYTES)
        return {"name": name, "text": text, "version": version_of(text)}

    @app.put("/api/scenarios/{name}")
    def save(name: str, body: TextBody) -> Response:
        path = folder.new_scenario(name)
        if len(body.text.encode()) > MOST_SCENARIO_BYTES:
            raise UserError(f"{name}: more than {MOST_SCENARIO_BYTES:,} bytes; give a smaller scenario")
        if _version_at(path) not in (body.version, version_of(body.text)):
            told = "is there already" if body.version == _NEW else "has changed since it was opened"
            return refusal(409, f"{name}: {told}; save under another name, or open it again")
        write_text(path, body.text)
        return JSONResponse({"version": version_of(body.text)})

    @app.post("/api/check")
    def check(body: TextBody) -> dict[str, Any]:
        found = _checked(body, folder)
        return {"kind": found.kind, "problems": [asdict(each) for each in found.problems]}

    @app.get("/api/knowledge")
    def knowledge() -> Response:
        return Response(compact(editor_knowledge()), media_type="application/json")

    @app.post("/api/check/engines")
    async def check_engines(body: TextBody) -> dict[str, Any]:
        found = _checked(body, folder)
        if not isinstance(found.scenario, Scenario):
            return {"problems": []}
        slot, turn = state.curves.newest(f"check {body.name}")
        task = PointTask(slot, turn, folder.root, body.name, body.text, Knobs(1.0), check=True)
        async for point in state.curves.points([task]):
            if "errors" in point:
                return {
                    "problems": [asdict(each) for each in refused(UserError(*point["errors"]), body.text, body.name)]
                }
        return {"problems": []}


def _checked(body: TextBody, folder: UiFolder) -> CheckedText:
    folder.new_scenario(body.name)
    return check_text(body.text, body.name, folder)


def version_of(text: str) -> str:
    """A name of a text's content."""
    return sha256(text.encode()).hexdigest()[:16]


def _version_at(path: Path) -> str:
    try:
        return version_of(read_text(path, MOST_SCENARIO_BYTES))
    except UserError:
        return _NEW


def add_whatif(app: FastAPI, state: PageState) -> None:
    folder = state.folder

    def read(name: str) -> tuple[str, Scenario]:
        text = read_text(folder.scenario(name), MOST_SCENARIO_BYTES)
        found = check_text(text, name, folder).whole
        if not isinstance(found, Scenario):
            raise UserError(f"{name}: what-if is for serving scenarios")
        return text, found

    @app.get("/api/whatif/{name}")
    def sliders(name: str) -> dict[str, Any]:
        _, scenario = read(name)
        slo = {limit.name: limit.seconds for limit in scenario.slo.on_run()}
        return {"own": Knobs.of(scenario).to_dict(), "ranges": ranges(scenario), "rates": RATES, "slo": slo}

    @app.post("/api/whatif")
    async def curve(body: CurveBody) -> Response:
        text, scenario = read(body.name)
        knobs, own = Knobs.read(body.knobs, scenario), Knobs.of(scenario)
        slot, turn = state.curves.newest(body.tab)
        longest_first = (share * own.rate for share in reversed(RATES))
        rates = dict.fromkeys([knobs.rate, *longest_first])
        shapes = [replace(knobs, rate=rate) for rate in rates]
        wanted = [each for each in shapes if each.rate not in body.known]
        tasks = [PointTask.first(slot, turn, folder.root, body.name, text, each, own.rate) for each in wanted]

        async def lines() -> AsyncIterator[str]:
            async for point in state.curves.rounds(tasks):
                yield compact(point) + "\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")
