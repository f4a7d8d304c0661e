"""Bodies of OpenAI's completions and chat completions, with what vLLM adds to them."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from steelyard.emulate.replica import AnswerChoice, CacheSource
from steelyard.emulate.text import chat_tokens, tokens_of, word_of

_MOST_CHOICES = 1024  # of one request
_MOST_GPUS = 1024  # of one engine
Token = Annotated[int, Field(ge=0, lt=1 << 32)]


def _with_role(message: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise ValueError("a message needs a role")
    return message


Message = Annotated[dict[str, Any], AfterValidator(_with_role)]


class StreamOptions(BaseModel):
    """What a stream has beside its tokens."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Body(BaseModel):
    """What both kinds of requests have in common. Keys that change no time are accepted and ignored."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=0)
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    n: int = Field(1, ge=1, le=_MOST_CHOICES)
    priority: int = 0
    request_id: str | None = None
    return_token_ids: bool = False
    kv_transfer_params: dict[str, Any] | None = None

    @property
    def cached(self) -> CacheSource | None:
        """Where the prompt's KV cache can be fetched: ``{"gpus": N}``, an engine of N GPUs, or 0, the host's memory."""
        gpus = (self.kv_transfer_params or {}).get("gpus")
        return CacheSource(gpus) if isinstance(gpus, int) and 0 <= gpus <= _MOST_GPUS else None

    @property
    def usage_at_end(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_always(self) -> bool:
        """Whether every part of a stream tells the tokens so far."""
        return self.usage_at_end and self.stream_options is not None and self.stream_options.continuous_usage_stats


class CompletionBody(_Body):
    """POST /v1/completions"""

    prompt: str | list[Token] | list[str] | list[list[Token]]
    logprobs: int | None = Field(None, ge=0)
    prompt_logprobs: int | None = Field(None, ge=-1)

    kind: Literal["completion"] = "completion"

    @property
    def most(self) -> int | None:
        """Tokens of output, 16 unless it says otherwise, as everywhere."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    @property
    def scored(self) -> bool:
        """Whether log-probs of prompts are wanted."""
        return self.prompt_logprobs is not None

    def prompts(self) -> list[array[int]]:
        """The tokens of each prompt."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [tokens_of(prompt)]
        if not prompt or isinstance(prompt[0], int):
            return [_ids(prompt)]
        return [tokens_of(each) if isinstance(each, str) else _ids(each) for each in prompt]


def _ids(tokens: object) -> array[int]:
    assert isinstance(tokens, list)
    return array("I", tokens)


class ChatBody(_Body):
    """POST /v1/chat/completions"""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool = False

    kind: Literal["chat"] = "chat"

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs

    @property
    def scored(self) -> bool:
        return False

    def prompts(self) -> list[array[int]]:
        """The tokens of the conversation."""
        return [chat_tokens(self.messages)]


Body = CompletionBody | ChatBody


class Rendering:
    """Writes what goes back to the client of one request, which is known by ``name``."""

    def __init__(self, body: Body, model: str, choices: Sequence[AnswerChoice], name: str) -> None:
        self._body = body
        self._choices = choices
        self._chat = body.kind == "chat"
        self.id = f"{'chatcmpl' if self._chat else 'cmpl'}-{name}"
        for place, choice in enumerate(choices):
            choice.ids = (name, self.id if self._chat else f"{self.id}-{place // body.n}")
        kind = ("chat.completion.chunk" if self._chat else "text_completion") if body.stream else None
        whole = "chat.completion" if self._chat else "text_completion"
        self._head = {"id": self.id, "object": kind or whole, "created": int(time.time()), "model": model}
        self._prefix = f"data: {json.dumps(self._head)[:-1]}, "
        self._plain = not (body.wants_logprobs or body.return_token_ids or body.usage_always)

    def opening(self) -> bytes:
        """What a stream begins with: chats tell the role."""
        if not self._chat:
            return b""
        roles = [{"index": index, "delta": {"role": "assistant", "content": ""}} for index in range(len(self._choices))]
        return b"".join(self._chunk([role | {"logprobs": None, "finish_reason": None}]) for role in roles)

    def chunk(self, index: int, first: int, last: int, finish: str | None) -> bytes:
        """Some tokens of a choice."""
        choice = self._choices[index]
        text = choice.output.text(first, last)
        if self._plain:  # most of all: the words need no escaping
            reason = "null" if finish is None else f'"{finish}"'
            part = f'"delta": {{"content": "{text}"}}' if self._chat else f'"text": "{text}"'
            entry = f'{{"index": {index}, {part}, "logprobs": null, "finish_reason": {reason}}}'
            return f'{self._prefix}"choices": [{entry}]}}\n\n'.encode()
        answer: dict[str, Any] = {"index": index, **({"delta": {"content": text}} if self._chat else {"text": text})}
        answer |= {"logprobs": self._logprobs(choice, first, last), "finish_reason": finish}
        if self._body.return_token_ids:
            answer["token_ids"] = choice.output.ids(first, last)
        return self._chunk([answer], _usage(choice, last) if self._body.usage_always else None)

    def closing(self) -> bytes:
        """What a stream ends with."""
        usage = self._chunk([], self.usage()) if self._body.usage_at_end else b""
        return usage + b"data: [DONE]\n\n"

    def failure(self, message: str) -> bytes:
        """What a stream ends with if it goes wrong."""
        return f"data: {json.dumps(error(message, 'InternalServerError', 500))}\n\n".encode() + b"data: [DONE]\n\n"

    def whole(self, finishes: Sequence[str]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        entries = []
        for index, (choice, finish) in enumerate(zip(self._choices, finishes, strict=True)):
            text = choice.output.text(0, choice.delivered)
            said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
            entry: dict[str, Any] = {"index": index, **said, "logprobs": self._logprobs(choice, 0, choice.delivered)}
            entry["finish_reason"] = finish
            if self._body.scored:
                computed = choice.delivered > 0 or finish != "abort"
                entry["prompt_logprobs"] = _scores(choice) if computed else None
            if self._body.return_token_ids:
                entry |= {
                    "token_ids": choice.output.ids(0, choice.delivered),
                    "prompt_token_ids": choice.prompt.tolist(),
                }
            entries.append(entry)
        return {**self._head, "choices": entries, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Tokens in and out."""
        prompts = sum(len(choice.prompt) for choice in self._choices[:: self._body.n])
        outputs = sum(choice.delivered for choice in self._choices)
        cached = sum(choice.request.hit for choice in self._choices[:: self._body.n] if choice.request is not None)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": outputs,
            "total_tokens": prompts + outputs,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _chunk(self, entries: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        body = {**self._head, "choices": entries} | ({"usage": usage} if usage is not None else {})
        return f"data: {json.dumps(body)}\n\n".encode()

    def _logprobs(self, choice: AnswerChoice, first: int, last: int) -> dict[str, Any] | None:
        if not self._body.wants_logprobs:
            return None
        places = range(first, last)
        tokens, ids = [choice.output.text(each, each + 1) for each in places], choice.output.ids(first, last)
        values = [
            logprob_of(choice.version_of(place))(len(choice.prompt) + place, token)
            for place, token in zip(places, ids, strict=True)
        ]
        if self._chat:
            pairs = zip(tokens, values, strict=True)
            return {"content": [{"token": each, "logprob": value, "top_logprobs": []} for each, value in pairs]}
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": []}


def _usage(choice: AnswerChoice, outputs: int) -> dict[str, int]:
    """Tokens of one choice so far."""
    prompt = len(choice.prompt)
    return {"prompt_tokens": prompt, "completion_tokens": outputs, "total_tokens": prompt + outputs}


def _scores(choice: AnswerChoice) -> list[dict[str, Any] | None]:
    """Log-probs of a prompt but for its first token. No other tokens are told: each is the likeliest of its place."""
    logprob = logprob_of(choice.version_of(0))
    return [
        {str(token): {"logprob": logprob(place, token), "rank": 1, "decoded_token": word_of(token)}} if place else None
        for place, token in enumerate(choice.prompt)
    ]


def logprob_of(version: str) -> Callable[[int, int], float]:
    """The log-probability of a token at a position under some weights. Other weights give others."""

    def found(position: int, token: int) -> float:
        drawn = blake2b(f"{version} {position} {token}".encode(), digest_size=4).digest()
        return -4.0 * int.from_bytes(drawn, "little") / 2**32

    return found


def error(message: str, kind: str, code: int) -> dict[str, Any]:
    """The body of a refusal, as vLLM writes it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
