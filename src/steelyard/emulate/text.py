"""Text and tokens, without a model's tokenizer: near enough in number, and the same text is always the same tokens.

A piece of text is a token: up to seven letters or three digits with the space before them, or one other character. Real
tokenizers make about as many tokens of English and of code. Clients that need exact lengths send token ids.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any
from zlib import crc32

_PIECE = re.compile(r" ?[^\W\d_]{1,7}| ?\d{1,3}| ?[^\w\s]| ?_|\s")
_WORDS = 1021  # a prime, so that any stride comes through all of them
END_OF_TURN = 1  # the token that ends a message


@cache
def _table() -> tuple[list[str], list[int]]:
    """Words of output and their tokens."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")]
    words = [f" {''.join(pair)}" for pair in product(syllables, repeat=2)][:: len(syllables) ** 2 // _WORDS][:_WORDS]
    return words, [crc32(word.encode()) for word in words]


def tokens_of(text: str) -> array[int]:
    """The tokens of a text."""
    return array("I", [crc32(piece.encode()) for piece in _PIECE.findall(text)])


@cache
def _words() -> dict[int, str]:
    """Words of output by their tokens."""
    words, ids = _table()
    return dict(zip(ids, words, strict=True))


def word_of(token: int) -> str:
    """The text of a token: its own if it is a word of output. Others are hashes, and some word stands for each."""
    word = _words().get(token)
    return _table()[0][token % _WORDS] if word is None else word


def chat_tokens(messages: Iterable[Mapping[str, Any]]) -> array[int]:
    """The tokens of a conversation, up to where the assistant is to speak."""
    found = array("I")
    for message in messages:
        found += tokens_of(f"<|{message['role']}|>\n")
        found += tokens_of(_content(message.get("content")))
        if message.get("tool_calls"):
            found += tokens_of(str(message["tool_calls"]))
        found.append(END_OF_TURN)
    return found + tokens_of("<|assistant|>\n")


def _content(content: object) -> str:
    """The text of a message. Parts that are not text count by what describes them."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text", part)) if isinstance(part, Mapping) else str(part) for part in content)
    return ""


class Output:
    """What a request is answered: words that no other request of the last million has in this order."""

    def __init__(self, number: int, tokens: int) -> None:
        self._start, self._stride = number % _WORDS, 1 + number // _WORDS % (_WORDS - 1)
        self.tokens = tokens

    def text(self, first: int, last: int) -> str:
        """The text of some of its tokens."""
        words = _table()[0]
        return "".join(words[(self._start + place * self._stride) % _WORDS] for place in range(first, last))

    def ids(self, first: int = 0, last: int | None = None) -> list[int]:
        """Some of its tokens."""
        ids = _table()[1]
        until = self.tokens if last is None else last
        return [ids[(self._start + place * self._stride) % _WORDS] for place in range(first, until)]
