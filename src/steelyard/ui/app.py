"""The application: the page, what it can ask for, and how mistakes are answered."""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from steelyard.errors import UserError
from steelyard.files.limits import MOST_SCENARIO_BYTES
from steelyard.ui.assets import assets, page
from steelyard.ui.guard import MOST_BODY, TooLarge
from steelyard.ui.routes_results import add_results, add_runs
from steelyard.ui.routes_scenarios import add_scenarios, add_whatif
from steelyard.ui.state import PageState, refusal


def make_page_app(state: PageState) -> FastAPI:
    """The application of a folder."""
    app = FastAPI(title="Steelyard", version=version("steelyard"), docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(UserError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_form)
    app.add_exception_handler(TooLarge, _refuse_size)
    app.add_exception_handler(Exception, _confess)
    _add_page(app)
    add_scenarios(app, state)
    add_whatif(app, state)
    add_runs(app, state)
    add_results(app, state)
    return app


async def _refuse(_: Request, problem: Exception) -> Response:
    return refusal(400, *map(str, problem.args))


async def _refuse_form(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    return refusal(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:500])


async def _refuse_size(_: Request, problem: Exception) -> Response:
    return refusal(413, f"more than {MOST_BODY:,} bytes; a scenario has at most {MOST_SCENARIO_BYTES:,}")


async def _confess(_: Request, problem: Exception) -> Response:
    traceback.print_exception(problem, file=sys.stderr)
    return refusal(500, f"internal error: {type(problem).__name__}; the terminal of `steelyard ui` has more")


def _add_page(app: FastAPI) -> None:
    @app.get("/")
    def index() -> Response:
        text, policy = page()
        return Response(text, media_type="text/html", headers={"content-security-policy": policy})

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        found = assets().get(name)
        return refusal(404, "no such file") if found is None else Response(found.content, media_type=found.type)
