"""One turn on one engine: what is asked of it, and what has come of it so far.

A turn may run on several engines one after the other: when its engine dies, when the core stops it for a while or sends
it elsewhere. Its tokens so far are kept, and the next engine is asked for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
_OURS = ("session_id", "group_id", "turn")  # keys of a body that are not for engines
_BYTES_PER_TOKEN = 4  # of English text and code, about; only for prompts whose tokens no engine has told


@dataclass(frozen=True)
class TurnRequest:
    """A client wants a turn of a trajectory."""

    trajectory: str
    path: str
    body: Mapping[str, Any]
    turn: int | None = None  # its number, from 0; without one it is the next
    group: str = ""
    prompt: str = ""  # a name for the prompt: samples of a group share it

    @property
    def most(self) -> int | None:
        """Tokens that the client wants at most."""
        found = self.body.get("max_completion_tokens", self.body.get("max_tokens"))
        return found if isinstance(found, int) else None

    @property
    def streams(self) -> bool:
        return self.body.get("stream") is True

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt; an estimate if it is text."""
        prompt = self.body.get("prompt")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            return len(prompt)
        text = prompt if isinstance(prompt, str) else orjson.dumps(self.body.get("messages") or prompt)
        size = len(text) if isinstance(text, bytes) else len(text.encode(errors="replace"))
        return max(1, size // _BYTES_PER_TOKEN)


@dataclass
class TurnSoFar:
    """What engines have generated of a turn."""

    prompt_ids: list[int] | None = None
    ids: list[int] | None = field(default_factory=list)  # None once an engine did not tell them
    count: int = 0
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)  # tokens by version of the weights
    finish: str | None = None
    message: dict[str, Any] = field(default_factory=dict)  # of a chat: what it has beside its content
    head: dict[str, Any] = field(default_factory=dict)  # the rest of the answer
    prompt_tokens: int | None = None

    def take(self, answer: Mapping[str, Any], version: int) -> int:
        """Add an answer, or a chunk of one. Returns how many tokens it has."""
        self.head = self.head or {key: answer[key] for key in ("id", "object", "created", "model") if key in answer}
        usage = answer.get("usage")
        if usage and self.prompt_tokens is None:
            self.prompt_tokens = usage.get("prompt_tokens")
        choices = answer.get("choices") or ()
        if not choices:
            return 0
        choice = choices[0]
        said = choice.get("message") or choice.get("delta") or {}
        self.text += choice.get("text") or said.get("content") or ""
        self.message |= {key: value for key, value in said.items() if key != "content" and value}
        if choice.get("prompt_token_ids") and self.prompt_ids is None:
            self.prompt_ids = choice["prompt_token_ids"]
        new = self._take_ids(choice, usage)
        self.logprobs += _logprobs(choice.get("logprobs"))
        self.finish = choice.get("finish_reason") or self.finish
        if new:
            self.versions[version] = self.versions.get(version, 0) + new
        self.count += new
        return new

    def _take_ids(self, choice: Mapping[str, Any], usage: Mapping[str, Any] | None) -> int:
        ids = choice.get("token_ids")
        if ids is not None and self.ids is not None:
            self.ids += ids
            return len(ids)
        streamed = "delta" in choice or usage is None
        new = 1 if streamed else int((usage or {}).get("completion_tokens", 0))
        if new:
            self.ids = None
        return new

    def rest(
        self, request: TurnRequest, *, cap: int | None, stream: bool, extra: Mapping[str, Any]
    ) -> tuple[str, bytes] | None:
        """Path and body of the request for the rest of the turn. None if it has to begin again from the start."""
        body = {key: value for key, value in request.body.items() if key not in _OURS}
        path = request.path
        if self.count:
            prompt = self.prompt_ids if path == CHAT else _ids_of(body.get("prompt")) or self.prompt_ids
            if prompt is None or self.ids is None:
                return None
            for key in ("messages", "max_completion_tokens", "tools", "tool_choice"):
                body.pop(key, None)
            path, body["prompt"] = COMPLETIONS, [*prompt, *self.ids]
        most = request.most
        left = None if most is None else most - self.count
        if cap is not None:
            left = cap if left is None else min(left, cap)
        if left is not None:
            body.pop("max_completion_tokens", None)
            body["max_tokens"] = left
        body |= {"stream": stream, "return_token_ids": True, **extra}
        return path, orjson.dumps(body)

    def answer(self, request: TurnRequest) -> dict[str, Any]:
        """The whole turn, as one engine would have answered it."""
        chat = request.path == CHAT
        said: dict[str, Any] = {"text": self.text}
        if chat:
            said = {"message": {"role": "assistant", **self.message, "content": self.text}}
        prompt_tokens = self.prompt_tokens if self.prompt_tokens is not None else request.prompt_tokens
        choice = {"index": 0, **said, "finish_reason": self.finish, "logprobs": None}
        if self.logprobs:
            choice["logprobs"] = {"token_logprobs": self.logprobs}
        if self.ids is not None:
            choice["token_ids"] = self.ids
            if _ids_of(request.body.get("prompt")) is None:  # else the client knows them
                choice["prompt_token_ids"] = self.prompt_ids
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.count,
            "total_tokens": prompt_tokens + self.count,
        }
        versions = {str(version): tokens for version, tokens in self.versions.items()}
        return {**self.head, "choices": [choice], "usage": usage, "weight_versions": versions}


def _ids_of(prompt: object) -> list[int] | None:
    return prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], int) else None


def _logprobs(found: Mapping[str, Any] | None) -> list[float]:
    if not found:
        return []
    if found.get("token_logprobs"):
        return [float(each) for each in found["token_logprobs"]]
    return [float(each["logprob"]) for each in found.get("content") or ()]
