"""Runs that are started and cancelled, and results that are shown, fetched and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field

from steelyard.errors import UserError
from steelyard.files.limits import MOST_SCENARIO_BYTES
from steelyard.files.partial import discard
from steelyard.files.reading import opened, read_text
from steelyard.records.jsontext import compact
from steelyard.ui.checking import check_text
from steelyard.ui.pointruns import write_point
from steelyard.ui.results import files_of
from steelyard.ui.state import PageState
from steelyard.ui.tables import TABLES, csv_of

_BLOCK = 1 << 18


class NamesBody(BaseModel):
    """Results, or the one scenario to run."""

    names: list[str] = Field(min_length=1, max_length=1000)


class PointBody(BaseModel):
    """A choice of a search."""

    level: str
    name: str


def add_runs(app: FastAPI, state: PageState) -> None:
    folder, runs = state.folder, state.runs

    @app.get("/api/started")
    async def started() -> list[dict[str, Any]]:
        return runs.all()

    @app.post("/api/started")
    async def start(body: NamesBody) -> dict[str, Any]:
        name = body.names[0]
        found = check_text(read_text(folder.scenario(name), MOST_SCENARIO_BYTES), name, folder)
        return (await runs.start(name, found.kind, found.whole.name)).to_dict()

    @app.get("/api/started/{number}")
    async def one(number: int) -> dict[str, Any]:
        return runs.one(number).to_dict()

    @app.post("/api/started/{number}/cancel")
    async def cancel(number: int) -> dict[str, Any]:
        return runs.cancel(number).to_dict()

    @app.post("/api/runs/{run}/point")
    async def point(run: str, body: PointBody) -> dict[str, Any]:
        name = write_point(folder, run, body.level, body.name)
        stem = name.removesuffix(".json")
        done = [each.name for each in folder.runs() if each.name.rpartition("-")[0] == stem]
        if done:
            return {"run": done[-1]}
        return (await runs.start(name, "serving", stem)).to_dict()


def add_results(app: FastAPI, state: PageState) -> None:
    folder = state.folder

    @app.get("/api/runs")
    def rows() -> Response:
        return Response(compact(state.listing.rows()), media_type="application/json")

    @app.post("/api/delete")
    async def delete(body: NamesBody) -> dict[str, Any]:
        paths = [folder.run(each) for each in body.names]
        for path in paths:
            if path.name in state.runs.writing_to:
                raise UserError(f"{path.name}: a run is writing to it; cancel it first")
        for path in paths:
            state.live.forget(path)
            discard(path)
        return {"deleted": body.names}

    @app.get("/api/runs/{run}")
    def result(run: str) -> Response:
        return Response(compact(state.results.page_of(folder.result(run))), media_type="application/json")

    @app.get("/api/runs/{run}/live")
    def live(run: str, after: int = 0) -> Response:
        return Response(compact(state.live.page(folder.result(run), after)), media_type="application/json")

    @app.get("/api/runs/{run}/files/{name}")
    def file(run: str, name: str) -> Response:
        path = folder.file_of(run, name)
        if name not in files_of(folder.result(run)):
            raise UserError(f"{name}: is no file of a result")
        return StreamingResponse(
            _blocks(path), media_type="application/octet-stream", headers=_as_file(f"{run}-{name}")
        )

    @app.get("/api/runs/{run}/csv/{table}")
    def csv(run: str, table: str) -> Response:
        if table not in TABLES:
            raise UserError(f"{table}: must be one of {', '.join(TABLES)}")
        path = folder.file_of(run, f"{table}.parquet")
        return StreamingResponse(csv_of(path), media_type="text/csv", headers=_as_file(f"{run}-{table}.csv"))


def _as_file(name: str) -> dict[str, str]:
    """Headers of what is to be saved, and never shown or run in the page's name."""
    plain = "".join(each if each.isascii() and (each.isalnum() or each in "._-+") else "_" for each in name)
    return {"content-disposition": f'attachment; filename="{plain}"'}


def _blocks(path: Path) -> Iterator[bytes]:
    with opened(path) as file:
        while block := file.read(_BLOCK):
            yield block
