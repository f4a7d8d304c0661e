"""The calculator task and its vocabulary."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from steelyard.live.tiny.arithmetic import value
from steelyard.live.tiny.model import make_tiny, tokenizer
from steelyard.live.tiny.symbols import SYMBOLS, decode, encode
from steelyard.live.tiny.task import demonstration, prompt, reward, tool

EXPRESSION = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: f"({''.join(parts)})"),
    max_leaves=6,
)


@given(EXPRESSION, st.sampled_from("+-*"), EXPRESSION)
def test_values_are_pythons(first: str, sign: str, second: str) -> None:
    text = f"{first}{sign}{second}"
    if len(text) <= 64:
        assert value(text) == eval(text)  # of digits, signs and parentheses alone


@pytest.mark.parametrize("text", ["", "1+", "+1", "-1", "(1", "1)", "1 + 2", "a", "1/2", "()", "2**3", "1" * 65, "٣"])
def test_what_is_no_expression_has_no_value(text: str) -> None:
    assert value(text) is None


def test_texts_are_tokens_and_back() -> None:
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 64
    text = "17+25=<tool>17+25</tool><result>42</result><answer>42<eos>"
    assert decode(encode(text)) == text
    assert decode(encode("<tool é")) == "?tool ?"


@given(st.text(alphabet="0123456789+-*=()<>/tolarse ", max_size=40))
def test_the_tokenizer_file_agrees(text: str) -> None:
    assert _TOKENIZER.encode(text).ids == encode(text)


_TOKENIZER: Tokenizer = tokenizer()


@pytest.mark.parametrize(
    ("text", "returned"),
    [
        ("1+2=<tool>1+2</tool>", "<result>3</result>"),
        ("1+2=<tool>1-2</tool>", "<result>-1</result>"),
        ("1+2=<tool>1-</tool>", "<result>?</result>"),
        ("1+2=<tool></tool>", "<result>?</result>"),
        ("1+2=<tool>1+2", None),
        ("1+2=1+2</tool>", None),
        ("1+2=<tool>1</tool><answer>", None),
    ],
)
def test_the_tool_answers_calls(text: str, returned: str | None) -> None:
    assert tool(text) == returned


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1+2=<tool>1+2</tool><result>3</result><answer>3<eos>", 1.0),
        ("1+2=<answer>3<eos>", 1.0),
        ("1-2=<answer>-1<eos>", 1.0),
        ("1+2=<tool>1+2</tool><result>3</result><answer>4<eos>", 0.2),
        ("1+2=<tool>1+2</tool><result>3</result><answer>3", 0.1),
        ("1+2=<tool>1+</tool><result>?</result><answer>4<eos>", 0.1),
        ("1+2=<answer>3<eos>3", 0.0),
        ("1+2=", 0.0),
    ],
)
def test_rewards(text: str, wanted: float) -> None:
    assert reward(text) == pytest.approx(wanted)


def test_prompts_follow_from_seed_and_index() -> None:
    assert prompt(1, 5) == prompt(1, 5)
    assert len({prompt(seed, index) for seed in range(3) for index in range(50)}) > 140
    assert all(value(prompt(0, index).removesuffix("=")) is not None for index in range(100))


def test_a_tutor_without_noise_is_always_right() -> None:
    draw = Random(1)
    assert all(reward("".join(demonstration(draw, 0, index, 0.0))) == 1.0 for index in range(50))
    noisy = [reward("".join(demonstration(draw, 0, index, 0.15))) for index in range(200)]
    assert 0.2 < sum(noisy) / 200 < 0.8


def test_the_folder_is_a_hugging_face_model(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "model", warm_up=0)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.head_dim == 64 and model.config.rope_parameters["rope_theta"] == 1000.0
    theirs = AutoTokenizer.from_pretrained(folder)
    text = "17+25=<tool>17+25</tool><result>42</result><answer>42<eos>"
    assert theirs.encode(text) == encode(text)
    assert theirs.decode(encode(text)) == text
    assert theirs.decode(encode(text), skip_special_tokens=True) == "17+25=17+254242"
    assert theirs.eos_token == "<eos>"


def test_the_same_seed_makes_the_same_model(tmp_path: Path) -> None:
    weights = [
        (make_tiny(tmp_path / name, seed, warm_up=2) / "model.safetensors").read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert weights[0] == weights[1] != weights[2]
