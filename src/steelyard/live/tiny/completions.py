"""Bodies of completions, the subset of vLLM's that the small engine speaks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from itertools import count
from random import SystemRandom
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from steelyard.errors import UserError
from steelyard.live.tiny.decoding import DecodeRow
from steelyard.live.tiny.engine import PromptToken, TinyEngine, TinyRequest

_MOST_CHOICES = 1024  # of one request
_NUMBERS = count()
_RANDOM = SystemRandom()
PromptId = Annotated[int, Field(ge=0, lt=1 << 31)]


class TinyStreamOptions(BaseModel):
    """What a stream has beside its tokens."""

    include_usage: bool = False


class TinyCompletionBody(BaseModel):
    """POST /v1/completions. What would change the output and is not supported is refused; other keys are ignored."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    prompt: str | list[PromptId]
    model: str | None = None
    max_tokens: int = Field(16, ge=1)
    temperature: float = Field(1.0, ge=0.0, le=100.0)
    seed: int | None = None
    n: int = Field(1, ge=1, le=_MOST_CHOICES)
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int | None = Field(None, ge=0, le=1)
    prompt_logprobs: int | None = Field(None, ge=0, le=100)
    return_token_ids: bool = False
    stream: bool = False
    stream_options: TinyStreamOptions | None = None
    request_id: str | None = None

    top_p: float = Field(1.0, ge=1.0, le=1.0)
    top_k: int = Field(-1, le=0)
    min_p: float = Field(0.0, le=0.0)
    presence_penalty: float = Field(0.0, ge=0.0, le=0.0)
    frequency_penalty: float = Field(0.0, ge=0.0, le=0.0)
    repetition_penalty: float = Field(1.0, ge=1.0, le=1.0)
    stop: list[str] | None = Field(None, max_length=0)
    echo: Literal[False] = False


class TinyCompletion:
    """One request of a client: its sequences, and what goes back."""

    def __init__(self, body: TinyCompletionBody, engine: TinyEngine) -> None:
        self.body = body
        self._engine = engine
        self.prompt = engine.encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
        self._check()
        self.id = f"cmpl-{body.request_id or f'{next(_NUMBERS):08x}'}"
        seed = _RANDOM.getrandbits(32) if body.seed is None else body.seed
        self.news = asyncio.Event()
        self.requests = [
            TinyRequest(f"{self.id}-{place}", self._row(seed + place), self.news) for place in range(body.n)
        ]
        self._sent = [0] * body.n
        self._head = {
            "id": self.id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": engine.name,
        }

    @property
    def ended(self) -> bool:
        """Whether all its sequences have."""
        return all(request.finish for request in self.requests)

    def _check(self) -> None:
        """Raise UserError for what cannot be computed."""
        if self.body.stream and self.body.prompt_logprobs is not None:
            raise UserError("prompt_logprobs: cannot be streamed; leave out stream")
        longest, vocabulary = self._engine.longest, self._engine.vocabulary
        if not 0 < len(self.prompt) < longest:
            raise UserError(f"prompt: has {len(self.prompt)} tokens; must have 1 to {longest - 1}")
        if max(self.prompt) >= vocabulary:
            raise UserError(f"prompt: has token {max(self.prompt)}; the model's are 0 to {vocabulary - 1}")

    def _row(self, seed: int) -> DecodeRow:
        ends = frozenset[int]() if self.body.ignore_eos else self._engine.ends
        return DecodeRow(
            tokens=list(self.prompt),
            most=min(self.body.max_tokens, self._engine.longest - len(self.prompt)),
            temperature=self.body.temperature,
            seed=seed,
            stops=ends | frozenset(self.body.stop_token_ids),
        )

    def chunk(self) -> bytes:
        """What is new of all sequences, for a stream."""
        parts = []
        for place, request in enumerate(self.requests):
            first, last = self._sent[place], request.told
            if last > first or (request.finish and first >= 0):
                parts.append(self._event({"choices": [self._choice(place, first, last, request.finish)]}))
                self._sent[place] = -1 if request.finish else last
        return b"".join(parts)

    def closing(self) -> bytes:
        """What a stream ends with."""
        wanted = self.body.stream_options is not None and self.body.stream_options.include_usage
        usage = self._event({"choices": [], "usage": self.usage()}) if wanted else b""
        return usage + b"data: [DONE]\n\n"

    def whole(self, scored: Sequence[Sequence[PromptToken]] | None) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choices = [self._choice(place, 0, each.told, each.finish) for place, each in enumerate(self.requests)]
        for choice in choices:
            choice["prompt_logprobs"] = None if scored is None else [None, *map(self._prompt_token, scored)]
        return {**self._head, "choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Tokens in and out."""
        outputs = sum(request.told for request in self.requests)
        prompts = len(self.prompt)
        return {"prompt_tokens": prompts, "completion_tokens": outputs, "total_tokens": prompts + outputs}

    def _choice(self, place: int, first: int, last: int, finish: str) -> dict[str, Any]:
        row = self.requests[place].row
        tokens = row.tokens[row.prompt + first : row.prompt + last]
        before, now = row.tokens[row.prompt : row.prompt + first], row.tokens[row.prompt : row.prompt + last]
        text = self._engine.decode(now)[len(self._engine.decode(before)) :]
        stopped = finish == "stop" and now[-1] in self.body.stop_token_ids
        found: dict[str, Any] = {
            "index": place,
            "text": text,
            "logprobs": self._logprobs(tokens, row.logprobs[first:last]),
            "finish_reason": finish or None,
            "stop_reason": now[-1] if stopped else None,
        }
        if self.body.return_token_ids:
            found["token_ids"] = tokens
            if first == 0:
                found["prompt_token_ids"] = self.prompt
        return found

    def _logprobs(self, tokens: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any] | None:
        if self.body.logprobs is None:
            return None
        names = [self._engine.symbol(token) for token in tokens]
        return {"tokens": names, "token_logprobs": list(logprobs), "top_logprobs": None, "text_offset": []}

    def _prompt_token(self, scored: Sequence[PromptToken]) -> dict[str, Any]:
        return {
            str(each.token): {
                "logprob": each.logprob,
                "rank": each.rank,
                "decoded_token": self._engine.symbol(each.token),
            }
            for each in scored
        }

    def _event(self, more: dict[str, Any]) -> bytes:
        return f"data: {json.dumps({**self._head, **more})}\n\n".encode()
