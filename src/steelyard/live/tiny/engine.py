"""A small engine: requests from many clients in one batch, and what operators do to it, as vLLM has it.

Everything runs on one event loop, but for the model's steps, which run in a thread. Between two steps the batch may be
changed, with the lock held that steps hold.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from tokenizers import Tokenizer

from steelyard.emulate.metrics import Metrics
from steelyard.errors import UserError
from steelyard.files.finding import is_file
from steelyard.files.jsontext import json_object
from steelyard.files.reading import read_text
from steelyard.live.tiny.decoding import DecodeBatch, DecodeRow
from steelyard.live.train.weights import load_model, load_weights, read_config

PauseMode = Literal["abort", "wait", "keep"]

_GENERATION = "generation_config.json"


@dataclass(eq=False)
class TinyRequest:
    """A request for one sequence. Its client sees what has been told, not what a running step changes."""

    id: str
    row: DecodeRow
    news: asyncio.Event  # set whenever there is something new
    told: int = 0  # tokens
    finish: str = ""

    def tell(self) -> None:
        """Let the client know how far it is."""
        self.told, self.finish = len(self.row.logprobs), self.row.finish
        self.news.set()


class PromptToken(NamedTuple):
    """How likely a token of a prompt was: its own place, and those of the likeliest."""

    token: int
    logprob: float
    rank: int


class TinyEngine:
    """One model in a folder, and its requests. `run` makes the steps."""

    def __init__(self, folder: Path, name: str | None = None, device: str = "cpu", most: int = 64) -> None:
        config = read_config(folder)
        self.name = name or str(folder)
        self.longest = int(config["max_position_embeddings"])
        self.vocabulary = int(config["vocab_size"])
        self.ends = _ends(folder, config.get("eos_token_id"))
        self.version = "0"
        self.paused = self.asleep = False
        self.metrics = Metrics(self.name, 0)
        self._tokenizer = _tokenizer(folder)
        self._device = device
        self._most = most  # rows in a batch
        self._model = load_model(folder).to(device)
        self._batch = DecodeBatch(self._model, device)
        self._requests: dict[DecodeRow, TinyRequest] = {}  # begun, and not ended
        self._waiting: deque[TinyRequest] = deque()
        self._later: deque[TinyRequest] = deque()  # arrived during a pause
        self._kept = False  # paused in the middle of requests
        self._changing = asyncio.Lock()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._tasks: set[asyncio.Future[None]] = set()

    # Clients

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without marks."""
        found: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return found

    def symbol(self, token: int) -> str:
        """One token as the vocabulary has it."""
        found: str | None = self._tokenizer.id_to_token(token)
        return found or ""

    @property
    def requests(self) -> list[TinyRequest]:
        """Those that have not ended."""
        return [*self._requests.values(), *self._waiting, *self._later]

    def submit(self, request: TinyRequest) -> None:
        """Take a request."""
        self.metrics.prompt_tokens.inc(request.row.prompt)
        (self._later if self.paused or self.asleep else self._waiting).append(request)
        self._work.set()

    async def score(self, tokens: Sequence[int], top: int) -> list[list[PromptToken]]:
        """Of each token of a prompt but the first: itself and the likeliest ones, by the present weights."""
        async with self._changing:
            if self.asleep:
                raise UserError("prompt_logprobs: the engine sleeps; wake it up first")
            return await asyncio.to_thread(self._score, tokens, top)

    async def abort(self, requests: Sequence[TinyRequest]) -> None:
        """Stop requests; each client is told what it has got."""
        async with self._changing:
            self._batch.remove([request.row for request in requests])
            self._waiting = deque(each for each in self._waiting if each not in requests)
            self._later = deque(each for each in self._later if each not in requests)
            for request in requests:
                if not request.row.finish:
                    request.row.finish = "abort"
                    self._end(request)

    def abandon(self, requests: Sequence[TinyRequest]) -> None:
        """Abort those that have not ended as soon as possible: their client has left."""
        if left := [request for request in requests if not request.finish]:
            task = asyncio.ensure_future(self.abort(left))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # Operators

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating: requests in flight are aborted, finish first, or keep their place until `resume`."""
        self.paused = True
        if mode == "abort":
            await self.abort(self.requests)
        elif mode == "keep":
            async with self._changing:  # so that no step runs any more
                self._kept = True
        else:
            while self._requests or self._waiting:
                self._idle.clear()
                await self._idle.wait()

    def resume(self) -> None:
        """Go on after a pause."""
        self.paused = self._kept = False
        if not self.asleep:
            self._waiting += self._later
            self._later.clear()
            self._work.set()

    async def sleep(self) -> None:
        """Give up the device's memory. What is in flight is aborted."""
        self.asleep = True
        await self.abort(self.requests)
        async with self._changing:
            self._model.to("cpu")
            if self._device.startswith("cuda"):
                torch.cuda.empty_cache()

    async def wake(self) -> None:
        """Come back after a sleep."""
        async with self._changing:
            self._model.to(self._device)
        self.asleep = False
        if not self.paused:
            self.resume()

    async def update(self, folder: Path, version: str) -> None:
        """Take weights of a folder. Caches of running requests stay as they are."""
        async with self._changing:
            await asyncio.to_thread(load_weights, self._model, folder)
            self.version = version

    async def recompute(self) -> None:
        """Compute the caches of running requests again, by the present weights."""
        async with self._changing:
            self._batch.recompute()

    # The loop

    async def run(self) -> None:
        """Make steps for ever."""
        while True:
            await self._work.wait()
            async with self._changing:
                while self._waiting and len(self._requests) < self._most and not self._kept:
                    self._begin(self._waiting.popleft())
                if self._kept or not self._requests:
                    self._work.clear()
                    continue
                await asyncio.to_thread(self._batch.step)
                for request in list(self._requests.values()):
                    self._tell(request)

    def _begin(self, request: TinyRequest) -> None:
        self._requests[request.row] = request
        self._batch.add([request.row])

    def _tell(self, request: TinyRequest) -> None:
        self.metrics.generated_tokens.inc(len(request.row.logprobs) - request.told)
        if request.row.finish:
            self._end(request)
        else:
            request.tell()

    def _end(self, request: TinyRequest) -> None:
        self._requests.pop(request.row, None)
        self.metrics.ended(request.row.finish)
        request.tell()
        self._idle.set()

    def observe(self) -> bytes:
        """Metrics as of now."""
        self.metrics.running.set(len(self._requests))
        self.metrics.waiting.set(len(self._waiting) + len(self._later))
        return self.metrics.text()

    def _score(self, tokens: Sequence[int], top: int) -> list[list[PromptToken]]:
        ids = torch.tensor([list(tokens)], device=self._device)
        with torch.inference_mode():
            logprobs = self._model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1).cpu()
        found = []
        for token, row in zip(tokens[1:], logprobs, strict=True):
            likeliest = row.topk(min(top, self.vocabulary)).indices.tolist()
            wanted = dict.fromkeys([token, *likeliest])
            found.append([PromptToken(each, float(row[each]), 1 + int((row > row[each]).sum())) for each in wanted])
        return found


def _tokenizer(folder: Path) -> Tokenizer:
    try:
        return Tokenizer.from_str(read_text(folder / "tokenizer.json", wanted="a model folder with a tokenizer"))
    except UserError:
        raise
    except Exception as problem:  # the library has no class of its own for what is wrong in a file
        raise UserError(f"{folder / 'tokenizer.json'}: cannot be read as a tokenizer: {problem}") from None


def _ends(folder: Path, given: object) -> frozenset[int]:
    """Tokens that end a sequence: those of the model's config, and those it is to be generated with."""
    more = json_object(folder / _GENERATION).get("eos_token_id") if is_file(folder / _GENERATION) else None
    found = [each for value in (given, more) for each in (value if isinstance(value, list) else [value])]
    return frozenset(each for each in found if isinstance(each, int))
