"""YAML as people mean it: what could be meant otherwise is refused, and nothing unfolds to more than was written."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.files.limits import MOST_DEPTH, MOST_VALUES
from steelyard.files.yamltext import Document, parse_yaml


def refusal(text: str) -> str:
    with pytest.raises(UserError) as refused:
        Document(text, "a.yaml")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", 64),
        ("-3", -3),
        ("+4", 4),
        ("1_000", 1000),
        ("0x10", 16),
        ("0", 0),
        ("-0", 0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e6", 1e6),
        ("1E-3", 1e-3),
        ("2.5e+3", 2500.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("true", True),
        ("off", False),
        ("~", None),
        ("", None),
        ("'0100'", "0100"),
        ('"1:30"', "1:30"),
        ("400Gb", "400Gb"),
        ("1.2.3", "1.2.3"),
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("2024-13-45", "2024-13-45"),
        ("-", [None]),
        ("--", "--"),
    ],
)
def test_values(text: str, value: Any) -> None:
    found = parse_yaml(text, "--set x")
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "text", ["0100", "-007", "08", "00", "0_1", "00.5", "01e3", "1:30", "1:30:00", "-1:0", "12:30.5"]
)
def test_numbers_that_yaml_reads_otherwise_are_refused(text: str) -> None:
    for place in (text, f"[{text}]", f"a: {text}", f"{{a: {text}}}"):
        assert "or quote it" in refusal(place)
    assert parse_yaml(f"{text}x", "--set x") == f"{text}x"


@pytest.mark.parametrize(
    "text",
    [
        "{replicas: 2, replicas: 3}",
        "a: {replicas: 2, 'replicas': 3}",
        "[{b: {c: 1, d: 2, c: 3}}]",
        "a: 1\nb: 2\na: 3",
        "a: &x {b: 1}\nc: {<<: *x, <<: *x}",
        '{1: a, "1": b}',
        "{a: 1, ? a : 2}",
    ],
)
def test_keys_given_twice_are_refused_wherever_they_stand(text: str) -> None:
    assert "is given twice, first on line" in refusal(text)
    with pytest.raises(UserError, match=r"--set x: key .* is given twice"):
        parse_yaml(text, "--set x")


def test_keys_are_text_as_written() -> None:
    assert parse_yaml("{on: 1, 007: 2, 1: 3, ~: 4}", "--set x") == {"on": 1, "007": 2, "1": 3, "~": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!python/object:os.system {}", "a tag"),
        ("a: !!int '3'", "a tag"),
        ("!x y: 1", "a key that is no plain text"),
        ("? [a]\n: b", "a key that is no plain text"),
        ("? {a: b}\n: b", "a key that is no plain text"),
        ("<<: 3", "<< takes a mapping"),
        ("a: *b", "alias *b"),
        ("a: &b [*b]", "alias *b"),
        ("--- a\n--- b", "a second document"),
        ("a: [1", "not valid YAML"),
        ("a: \x01", "not valid YAML"),
        ("a: \ud800", "not valid YAML"),
        ('a: "\\ud800"', "not valid YAML"),
        ("a: " + "9" * 5000, "a number of 5,000 digits"),
        ("a: 0x" + "f" * 5000, "digits"),
        ("a: ['" + "é" * 5000 + "', 1, 2", "not valid YAML"),
    ],
)
def test_other_refusals(text: str, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize("unit", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused(unit: str) -> None:
    for levels in (MOST_DEPTH + 1, 500, 50_000):
        message = refusal(unit * levels)
        assert "levels deep" in message or (unit == "? " and "no plain text" in message)


def test_the_deepest_that_is_read() -> None:
    value: Any = "x"
    for _ in range(MOST_DEPTH):
        value = [value]
    assert parse_yaml("[" * MOST_DEPTH + "x" + "]" * MOST_DEPTH, "--set x") == value


def test_aliases_are_counted_as_often_as_they_are_used() -> None:
    bomb = "&b0 [x,x,x,x,x,x,x,x,x]" + "".join(f", &b{i} [{','.join([f'*b{i - 1}'] * 9)}]" for i in range(1, 11))
    assert f"more than {MOST_VALUES:,} values" in refusal(f"name: [{bomb}]")
    merged = "&b0 {a: 1}" + "".join(f", &b{i} {{<<: [{','.join([f'*b{i - 1}'] * 9)}]}}" for i in range(1, 11))
    assert f"more than {MOST_VALUES:,} values" in refusal(f"[{merged}]")
    tower = "&b0 [x]" + "".join(f", &b{i} [*b{i - 1}]" for i in range(1, 1000))
    assert "levels deep" in refusal(f"[{tower}]")


def test_a_change_of_an_alias_changes_nothing_else() -> None:
    data = parse_yaml("{a: &x {b: 1}, c: *x}", "--set x")
    data["c"]["b"] = 2
    assert data["a"] == {"b": 1}


def test_lines_of_keys() -> None:
    document = Document("a:\n  b: 1\n  c:\n    - 2\n    - d: 3\ne: &x {f: 4}\ng: *x\n", "a.yaml")
    assert document.line_of(("a", "c", 1, "d")) == 5
    assert document.line_of(("a", "c", 0)) == 4
    assert document.line_of(("a", "none")) == 1
    assert document.line_of(("a", "b", "none")) == 2
    assert document.line_of(("g", "f")) == 7
    assert document.line_of(("none",)) is None


TEXT = st.text().filter(lambda text: text[:1] not in tuple("+-.0123456789"))  # PyYAML writes 1e6 without quotes
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_dumped_is_read_back(value: Any) -> None:
    assert parse_yaml(yaml.safe_dump(value), "--set x") == value


@given(st.text(alphabet="{}[]:,-?&*!|>'\"%@`ab01. \n\t#<~"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_yaml(text, "--set x")
    except UserError as error:
        assert str(error).startswith("--set x: ")
