"""The gateway's interface as an OpenAPI document, for clients and for fuzzers.

Bodies for engines are described as far as the gateway looks at them: engines check the rest, and their refusals are
passed on.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from steelyard.live.rules import IDENTIFIER
from steelyard.live.trajectories import LONGEST_NAME, MOST_TOKENS, MOST_TURNS
from steelyard.records import Outcome

Document = dict[str, Any]
_PATTERN = f"^{IDENTIFIER}$"
_Identifier = Annotated[str, Field(pattern=_PATTERN)]
_Token = Annotated[int, Field(ge=0, lt=1 << 32)]
_TurnNumber = Annotated[int, Field(ge=0, lt=MOST_TURNS)]


class _Open(BaseModel):
    """May have more keys than are described here."""

    model_config = ConfigDict(extra="allow")


class TokensWanted(_Open):
    """What both kinds of requests for tokens have in common. Other keys are for the engine."""

    model: str | None = None
    stream: bool = False
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1)] = Field(1, description="Answers to each prompt. A turn has one.")
    session_id: _Identifier | None = Field(None, description="As the header X-Session-ID, which comes first.")
    group_id: _Identifier | None = Field(None, description="As the header X-Group-ID, which comes first.")
    turn: _TurnNumber | None = Field(None, description="As the header X-Turn, which comes first.")


class CompletionWanted(TokensWanted):
    """POST /v1/completions"""

    prompt: str | list[_Token] | list[str] | list[list[_Token]] = Field(description="A turn takes one prompt.")


class MessageSaid(_Open):
    """One message of a chat."""

    role: str


class ChatWanted(TokensWanted):
    """POST /v1/chat/completions"""

    messages: list[MessageSaid] = Field(min_length=1)


class GivenUsage(_Open):
    """Tokens in and out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class GivenChoice(_Open):
    """One answer: ``text`` of a completion, ``message`` of a chat."""

    index: int
    finish_reason: str | None


class TokensGiven(_Open):
    """An engine's answer, as OpenAI describes it. A turn also has the tokens by version of the weights."""

    choices: list[GivenChoice]
    usage: GivenUsage
    weight_versions: dict[str, int] | None = None


class ModelsServed(_Open):
    """GET /v1/models"""

    data: list[dict[str, Any]]


class ToolReturned(_Open):
    """POST /v1/trajectories/{trajectory}/tool_return. Without ``tokens`` they are those by which the next prompt is
    longer."""

    tool: str = Field("tool", max_length=LONGEST_NAME)
    outcome: Outcome = "ok"
    tokens: Annotated[int, Field(ge=0, lt=MOST_TOKENS)] | None = None


class TrajectoryEnded(_Open):
    """POST /v1/trajectories/{trajectory}/end"""

    reward: float | None = None


class TrajectoryAborted(_Open):
    """POST /v1/trajectories/{trajectory}/abort"""


class TrajectoryTold(BaseModel):
    """What was told is taken."""

    trajectory: str


class TurnKept(BaseModel):
    """A turn that was answered."""

    turn: int
    prompt_tokens: int
    generated: int
    answer: dict[str, Any]


class TrajectoryKept(BaseModel):
    """GET /v1/trajectories/{trajectory}. ``fate`` is empty while it goes on."""

    name: str
    group: str
    version: int = Field(description="Of the weights that it began with.")
    prompt_tokens: int
    fate: Literal["", "ended", "aborted"]
    reward: float | None
    turns: list[TurnKept]
    context: int
    generated: int


class RefusalReason(_Open):
    """Why a request was refused."""

    message: str


class Refusal(_Open):
    """Any answer that is not what was asked for, the gateway's or an engine's."""

    error: RefusalReason


_MODELS = (
    *(CompletionWanted, ChatWanted, TokensGiven, ModelsServed, ToolReturned, TrajectoryEnded, TrajectoryAborted),
    *(TrajectoryTold, TrajectoryKept, Refusal),
)
_WHY = {
    400: "The body, an identifier or the target is not valid.",
    401: "No token, or one that is not known.",
    403: "The token has not the scope that this takes.",
    404: "There is no such trajectory, or the engine knows no such model.",
    405: "Another method.",
    408: "The request did not come in time.",
    409: "A turn is under way, or another turn is the next.",
    410: "The trajectory is over.",
    413: "The body is too long.",
    429: "Too many requests with this token.",
    502: "Engines failed one after the other.",
    503: "No engine is up.",
}


def described(*, fleet: bool, trajectories: bool, tokens: bool) -> Document:
    """The document of a gateway with a serving fleet, with trajectories, or with both. ``tokens`` says whether it has
    tokens, so that clients need one."""
    modes = _Modes(fleet, trajectories, tokens)
    paths: Document = {
        "/health": {"get": _call("Whether requests can be answered.", {200: None, 503: None})},
        "/openapi.json": {"get": _call("This document.", {200: _json({"type": "object"})})},
        "/metrics": {"get": modes.call("Metrics for Prometheus.", {200: {"text/plain": {}}}, (), "operator")},
        "/v1/models": {"get": modes.call("Models of the engines.", {200: _ref(ModelsServed)}, (502, 503))},
        "/v1/completions": {"post": modes.tokens(CompletionWanted)},
        "/v1/chat/completions": {"post": modes.tokens(ChatWanted)},
    }
    if trajectories:
        paths |= _trajectory_paths(modes)
    _, definitions = models_json_schema(
        [(model, "validation") for model in _MODELS], ref_template="#/components/schemas/{model}"
    )
    components: Document = {"schemas": definitions["$defs"]}
    if tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Steelyard gateway", "version": version("steelyard")},
        "paths": paths,
        "components": components,
    }


class _Modes:
    """What a gateway does, and so which refusals its operations may give."""

    def __init__(self, fleet: bool, trajectories: bool, needs_token: bool) -> None:
        self._fleet, self._trajectories, self._needs_token = fleet, trajectories, needs_token

    def call(
        self, about: str, answers: dict[int, Document | None], refusals: tuple[int, ...], scope: str = "client"
    ) -> Document:
        """An operation for which clients need a token, if there are any."""
        refused = {status: _ref(Refusal) for status in (*((401, 403) if self._needs_token else ()), 429, *refusals)}
        call = _call(f"{about} Takes a token of scope {scope}.", {**answers, **refused})
        return {**call, "security": [{"token": []}]} if self._needs_token else call

    def tokens(self, body: type[BaseModel]) -> Document:
        """Requests for tokens."""
        about, names = "Generate.", ["x-session-id"]
        refusals: tuple[int, ...] = (400, 404, 408, 413, 502, 503)
        if self._fleet:
            names.append("x-request-id")
        if self._trajectories:
            about += " With X-Session-ID it is the next turn of that trajectory, or the one that X-Turn says."
            refusals = (*refusals, 409, 410)
            names.append("x-group-id")
        answer = {**_ref(TokensGiven), "text/event-stream": {}}
        call = self.call(about, {200: answer}, refusals)
        call["parameters"] = [_header(name, {"type": "string", "pattern": _PATTERN}) for name in names]
        if self._trajectories:
            limits = {"type": "integer", "minimum": 0, "maximum": MOST_TURNS - 1}
            call["parameters"].append(_header("x-turn", limits))
        return {**call, "requestBody": {"required": True, "content": _ref(body)}}


_NAME = {"name": "trajectory", "in": "path", "required": True, "schema": {"type": "string", "pattern": _PATTERN}}


def _trajectory_paths(modes: _Modes) -> Document:
    told: dict[str, tuple[type[BaseModel], str]] = {
        "tool_return": (ToolReturned, "A tool of this trajectory has returned."),
        "end": (TrajectoryEnded, "The trajectory is over, and may be trained on."),
        "abort": (TrajectoryAborted, "The trajectory is given up."),
    }
    read = modes.call("What is known of a trajectory.", {200: _ref(TrajectoryKept)}, (400, 404), "engine")
    found: Document = {"/v1/trajectories/{trajectory}": {"parameters": [_NAME], "get": read}}
    for word, (body, about) in told.items():
        call = modes.call(about, {200: _ref(TrajectoryTold)}, (400, 404, 408, 409, 410, 413))
        call["requestBody"] = {"content": _ref(body)}
        found[f"/v1/trajectories/{{trajectory}}/{word}"] = {"parameters": [_NAME], "post": call}
    return found


def _call(about: str, answers: dict[int, Document | None]) -> Document:
    return {"summary": about, "responses": {str(status): _response(status, each) for status, each in answers.items()}}


def _response(status: int, content: Document | None) -> Document:
    found: Document = {"description": _WHY.get(status, "The answer.")}
    if content is not None:
        found["content"] = content
    if status == 401:
        found["headers"] = {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}}
    if status == 429:
        found["headers"] = {"Retry-After": {"required": True, "schema": {"type": "integer"}}}
    return found


def _header(name: str, schema: Document) -> Document:
    return {"name": name, "in": "header", "schema": schema}


def _ref(model: type[BaseModel]) -> Document:
    return _json({"$ref": f"#/components/schemas/{model.__name__}"})


def _json(schema: Document) -> Document:
    return {"application/json": {"schema": schema}}
