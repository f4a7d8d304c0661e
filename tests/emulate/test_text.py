"""Text and tokens of emulated engines: a conversation's next prompt begins with the last one and its answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steelyard.emulate.text import END_OF_TURN, Output, chat_tokens, tokens_of, word_of


@given(st.text(), st.text())
def test_the_same_text_is_the_same_tokens(one: str, other: str) -> None:
    assert tokens_of(one) == tokens_of(one)
    assert len(tokens_of(one)) <= len(one)
    assert (tokens_of(one + "\n" + other))[: len(tokens_of(one))] == tokens_of(one)


def test_english_has_about_as_many_tokens_as_with_a_real_tokenizer() -> None:
    text = "The quick brown fox jumps over the lazy dog, and 12,345 others follow it through the international gate."
    assert 20 <= len(tokens_of(text)) <= 30  # tiktoken's cl100k_base makes 24


def test_output_text_and_output_tokens_agree() -> None:
    for number in (0, 1, 1020, 1021, 123_456):
        output = Output(number, 50)
        assert tokens_of(output.text(0, 50)).tolist() == output.ids()
        assert output.text(0, 20) + output.text(20, 50) == output.text(0, 50)
    assert len({Output(number, 3).text(0, 3) for number in range(50_000)}) == 50_000


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_any_tokens_can_be_written_as_as_many_words(tokens: list[int]) -> None:
    text = "".join(map(word_of, tokens))
    again = tokens_of(text).tolist()
    assert len(again) == len(tokens) and "".join(map(word_of, again)) == text


def test_words_of_output_are_written_as_they_are() -> None:
    output = Output(5, 40)
    assert "".join(map(word_of, output.ids())) == output.text(0, 40)


def test_the_next_prompt_of_a_chat_begins_with_the_last_one_and_its_answer() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a steelyard?"}]
    answer = Output(7, 30)
    before = chat_tokens(messages)
    before.extend(answer.ids())
    before.append(END_OF_TURN)
    messages += [{"role": "assistant", "content": answer.text(0, 30)}, {"role": "tool", "content": "42"}]
    assert chat_tokens(messages)[: len(before)] == before


def test_parts_of_messages_count() -> None:
    parts = [{"type": "text", "text": "Look at"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert len(chat_tokens([{"role": "user", "content": parts}])) > len(
        chat_tokens([{"role": "user", "content": "Look at"}])
    )
    assert chat_tokens([{"role": "assistant", "content": None, "tool_calls": [{"function": "f"}]}])
