"""JSON from outside: bounded nesting and digits, and each mistake with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.files.jsontext import json_lines, json_object, json_row, parse_json
from steelyard.files.limits import MOST_DEPTH, MOST_DIGITS

HOSTILE = {
    "deep": ('{"a": ' + "[" * 500 + "]" * 500 + "}", "levels deep"),
    "very deep": ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "levels deep"),
    "deep objects": ('{"a": ' * 500 + "1" + "}" * 500, "levels deep"),
    "digits": ('{"a": ' + "9" * 5000 + "}", "a number of 5,000 digits"),
    "fewer digits": ('{"a": -' + "9" * 400 + "}", "a number of 401 digits"),
    "half a character": ('{"a": "\\ud800"}', "half a character"),
    "half a character in a key": ('{"\\uDC00x": 1}', "half a character"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused_alone_and_in_a_line(tmp_path: Path, name: str) -> None:
    text, message = HOSTILE[name]
    path = tmp_path / "a.json"
    path.write_text(f'{{"good": "\\ud83d\\ude00"}}\n\n{text}\n')
    with pytest.raises(UserError, match=rf"a\.json:3: .*{message}"):
        list(json_lines(path))
    path.write_text(text)
    with pytest.raises(UserError, match=rf"a\.json: .*{message}"):
        json_object(path)
    with pytest.raises(UserError, match=rf"row 3: .*{message}"):
        json_row(text, "row 3")


@pytest.mark.parametrize("text", ["[1]", "3", '"x"', "null", "NaN"])
def test_objects_are_wanted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    for read in (json_object, lambda path: list(json_lines(path))):
        with pytest.raises(UserError, match="must be a JSON object"):
            read(path)


def test_keys_given_twice_are_refused() -> None:
    with pytest.raises(UserError, match=r"a\.json: key 'b' is given twice"):
        parse_json('{"a": [{"b": 1, "c": 2, "b": 3}]}', "a.json")
    many = ", ".join(f'"k{number}": 1' for number in range(300_000))  # half an hour if each is compared with each
    with pytest.raises(UserError, match=r"a\.json: key 'b' is given twice"):
        parse_json(f'{{{many}, "b": 1, "b": 2}}', "a.json")


def test_a_torn_last_line_is_left_out_only_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": ')
    assert [row["a"] for _, row in json_lines(path, torn=True)] == [1, 2]
    with pytest.raises(UserError, match=r"a\.jsonl:3: not valid JSON"):
        list(json_lines(path))
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(UserError, match=r"a\.jsonl:2: not valid JSON"):
        list(json_lines(path, torn=True))
    path.write_text('{"a": ')
    with pytest.raises(UserError, match=r"a\.jsonl:1: not valid JSON"):
        list(json_lines(path, torn=True))


def test_no_more_lines_are_read_than_wanted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\nnonsense')
    assert [where.rpartition(":")[2] for where, _ in json_lines(path, 2)] == ["1", "3"]
    assert list(json_lines(path, 0)) == []


WHOLE = st.integers(-(10**MOST_DIGITS) + 1, 10**MOST_DIGITS - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
@given(st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=4))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> None:
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row for _, row in json_lines(path)] == rows


def test_the_deepest_that_is_read(tmp_path: Path) -> None:
    text = '{"a": ' + "[" * (MOST_DEPTH - 1) + "]" * (MOST_DEPTH - 1) + "}"
    assert json.loads(text) == parse_json(text, "a")
    with pytest.raises(UserError):
        parse_json(text.replace("[]", "[[]]"), "a")
