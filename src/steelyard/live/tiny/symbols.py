"""The tiny model's vocabulary: one token for each character, and some for marks such as ``<tool>``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from string import ascii_lowercase

PAD, EOS, CALL, CALL_END, RESULT, RESULT_END, ANSWER = (
    "<pad>",
    "<eos>",
    "<tool>",
    "</tool>",
    "<result>",
    "</result>",
    "<answer>",
)
MARKS = (PAD, EOS, CALL, CALL_END, RESULT, RESULT_END, ANSWER)
SYMBOLS = (*MARKS, *"0123456789+-*=()", *ascii_lowercase, *" .,:;?!/%_#@[]'")
"""64 in all. A token's id is its place. Letters and punctuation are there for other tasks."""

PATTERN = f"{'|'.join(MARKS)}|[\\s\\S]"
_PIECE = re.compile(PATTERN)
_IDS = {symbol: place for place, symbol in enumerate(SYMBOLS)}
UNKNOWN = _IDS["?"]


def encode(text: str) -> list[int]:
    """The tokens of a text. Characters that are not in the vocabulary become question marks."""
    return [_IDS.get(piece, UNKNOWN) for piece in _PIECE.findall(text)]


def decode(tokens: Iterable[int]) -> str:
    """The text of tokens, with all marks."""
    return "".join(SYMBOLS[token] for token in tokens)


def token(symbol: str) -> int:
    """The id of one symbol."""
    return _IDS[symbol]
