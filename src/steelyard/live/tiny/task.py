"""The calculator task: a sum to work out, a tool that can, and a reward for the right answer.

A whole trajectory reads ``17+25=<tool>17+25</tool><result>42</result><answer>42<eos>``. The policy writes the call and
the answer; the environment writes the result.
"""

from __future__ import annotations

import re
from random import Random

from steelyard.live.tiny.arithmetic import value
from steelyard.live.tiny.symbols import ANSWER, CALL, CALL_END, EOS, RESULT, RESULT_END

# Chosen: small beside the reward of a right answer, so that it never pays to be well-formed and wrong.
CALL_REWARD = 0.1
FORM_REWARD = 0.1

_CALL = re.compile(rf"{CALL}([^<>]*){CALL_END}$")
_CALLED = re.compile(rf"{CALL}([^<>]*){CALL_END}{RESULT}(-?[0-9]+){RESULT_END}")
_ANSWER = re.compile(rf"{ANSWER}(-?[0-9]{{1,12}}){EOS}$")


def prompt(seed: int, index: int) -> str:
    """One of endless prompts: two numbers, or three in a quarter of all cases."""
    draw = Random(f"{seed} {index}")
    first = f"{draw.randint(0, 99)}{draw.choice('+-*')}{draw.randint(0, 99)}"
    if draw.random() < 0.25:
        return f"({first}){draw.choice('+-')}{draw.randint(0, 99)}="
    return f"{first}="


def tool(text: str) -> str | None:
    """What the calculator returns if a text ends with a call; None if it does not. Nonsense gives a question mark."""
    found = _CALL.search(text)
    if found is None:
        return None
    result = value(found[1])
    return f"{RESULT}{'?' if result is None else result}{RESULT_END}"


def reward(text: str) -> float:
    """Of a whole trajectory with its prompt: 1 for the right answer, or little for what is at least well-formed."""
    given = _ANSWER.search(text)
    if given is not None and int(given[1]) == value(text.partition("=")[0]):
        return 1.0
    return CALL_REWARD * (_CALLED.search(text) is not None) + FORM_REWARD * (given is not None)


def demonstration(draw: Random, seed: int, index: int, noise: float) -> tuple[str, str, str, str]:
    """Prompt, call, result and answer as a tutor writes them, who mistakes digits with a chance of ``noise`` each."""
    asked = prompt(seed, index)
    call = f"{CALL}{_blurred(asked[:-1], draw, noise)}{CALL_END}"
    result = tool(call)
    assert result is not None
    right = result.removeprefix(RESULT).removesuffix(RESULT_END)
    return asked, call, result, f"{ANSWER}{_blurred(right, draw, noise)}{EOS}"


def _blurred(text: str, draw: Random, noise: float) -> str:
    return "".join(str(draw.randint(0, 9)) if each.isdigit() and draw.random() < noise else each for each in text)
