"""Continuous batching: who else is in the batch changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import torch
from torch.nn import Module

from steelyard.live.tiny.decoding import DecodeBatch, DecodeRow, generate
from steelyard.live.tiny.model import make_tiny
from steelyard.live.train.weights import load_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Module:
    return load_model(make_tiny(tmp_path_factory.mktemp("decoding") / "model", seed=5, warm_up=5))


def _rows(count: int = 12) -> list[DecodeRow]:
    """Prompts of several lengths, some of them alike."""
    draw = Random(7)
    prompts = [[draw.randrange(7, 64) for _ in range(draw.choice((1, 3, 3, 9)))] for _ in range(count)]
    return [DecodeRow(each, draw.randint(1, 25), seed=place) for place, each in enumerate(prompts)]


def _true_logprobs(model: Module, row: DecodeRow) -> list[float]:
    """By one pass over all tokens."""
    ids = torch.tensor([row.tokens])
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits[0, row.prompt - 1 : -1].log_softmax(-1)
    found: list[float] = logprobs.gather(-1, ids[0, row.prompt :, None]).squeeze(-1).tolist()
    return found


def _same(found: Sequence[DecodeRow], wanted: Sequence[DecodeRow]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one.tokens, one.finish) == (other.tokens, other.finish)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.fixture(scope="module")
def lone(model: Module) -> list[DecodeRow]:
    """Rows that ran one at a time."""
    rows = _rows()
    for row in rows:
        generate(model, [row])
    return rows


def test_log_probabilities_are_those_of_the_model(model: Module, lone: list[DecodeRow]) -> None:
    for row in lone:
        assert len(row.generated) == row.most and row.finish == "length"
        assert row.logprobs == pytest.approx(_true_logprobs(model, row), abs=1e-4)


def test_all_at_once(model: Module, lone: list[DecodeRow]) -> None:
    rows = _rows()
    generate(model, rows)
    _same(rows, lone)


def test_rows_come_and_go(model: Module, lone: list[DecodeRow]) -> None:
    rows, batch = _rows(), DecodeBatch(model)
    ended: list[DecodeRow] = []
    for start in range(0, len(rows), 3):
        batch.add(rows[start : start + 3])
        for _ in range(4):
            ended += batch.step()
    while batch.rows:
        ended += batch.step()
    assert len(ended) == len(rows) and all(row in ended for row in rows)
    _same(rows, lone)


def test_caches_can_be_computed_again(model: Module, lone: list[DecodeRow]) -> None:
    rows, batch = _rows(), DecodeBatch(model)
    batch.add(rows)
    for step in range(30):
        batch.step()
        if step % 5 == 2:
            batch.recompute()
    _same(rows, lone)


def test_others_go_on_when_some_are_removed(model: Module, lone: list[DecodeRow]) -> None:
    rows, batch = _rows(), DecodeBatch(model)
    batch.add(rows)
    batch.step()
    batch.remove(rows[::2])
    while batch.rows:
        batch.step()
    _same(rows[1::2], lone[1::2])
    assert all(len(row.generated) == 1 for row in rows[::2])


def test_stops_end_a_row_and_are_part_of_it(model: Module) -> None:
    free = DecodeRow([8, 9], 40, seed=3)
    generate(model, [free])
    stop = free.generated[10]
    first = free.generated.index(stop)
    row = DecodeRow([8, 9], 40, seed=3, stops=frozenset((stop,)))
    generate(model, [row])
    assert row.finish == "stop" and row.generated == free.generated[: first + 1]


def test_temperature_zero_takes_the_likeliest(model: Module) -> None:
    rows = [DecodeRow([8, 9, 10], 10, temperature=0.0, seed=seed) for seed in range(2)]
    generate(model, rows)
    assert rows[0].tokens == rows[1].tokens
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([rows[0].tokens])).logits[0]
    assert rows[0].generated == logits[2:-1].argmax(-1).tolist()


def test_draws_follow_the_probabilities(model: Module) -> None:
    rows = [DecodeRow([8, 9], 1, seed=seed) for seed in range(4000)]
    generate(model, rows)
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([[8, 9]])).logits[0, -1].softmax(-1)
    found = torch.bincount(torch.tensor([row.tokens[-1] for row in rows]), minlength=64) / len(rows)
    deviation = (wanted * (1 - wanted) / len(rows)).sqrt()
    assert bool(((found - wanted).abs() < 5 * deviation + 1e-3).all())
