"""Names in Markdown and JSON: shown, never obeyed."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from steelyard.records.jsontext import compact, readable
from steelyard.report.markdown import code, plain
from steelyard.report.names import file_name

NASTY = st.text(st.sampled_from("ab `*_[]()<>|\\&~#\n\r\t\x1b\x9b\u202e\ud800é"), max_size=30)


def test_names_have_no_meaning_of_their_own() -> None:
    assert plain("a|b [x](y) *z* <i> `c`") == r"a\|b \[x\](y) \*z\* \<i\> \`c\`"
    assert plain("_x_ snake_case search-48.yaml") == r"\_x\_ snake_case search-48.yaml"
    assert code("a b") == "`a b`" and code("a`b") == "`` a`b ``" and code("``a`") == "``` ``a` ```"


@given(NASTY)
def test_no_character_of_a_name_is_left_to_markdown(name: str) -> None:
    shown = plain(name)
    assert "\n" not in shown and shown.encode() is not None
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*\[\]<>|~]", shown)
    fence = re.match("`+", code(name or "x"))
    assert fence and fence[0] not in re.findall("`+", code(name or "x").strip("`"))


@given(NASTY)
def test_json_has_no_control_characters_and_reads_back(name: str) -> None:
    for text in (readable({"name": name}), compact({"name": name})):
        assert json.loads(text) == {"name": name} and text.encode()
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


@given(st.text(max_size=300))
def test_any_name_is_one_of_a_file(name: str) -> None:
    made = file_name(name)
    assert made and "/" not in made and made not in (".", "..") and len(made.encode()) <= 200 and "\0" not in made
