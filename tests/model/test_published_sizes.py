"""Parameters of the models of 2026 against what their publishers state.

Publishers round, and most of them do not say whether active parameters include the embedding and the output head. So a
total must be within 1 % or round to the published figure, and active parameters within the range that leaving tables
out allows. `docs/models.md` has the sources.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from steelyard.model import Parameters, load_model, parameters


class Published(NamedTuple):
    """Billions of parameters, to what a total is rounded if that is more than 1 % of it, and those outside its text
    model."""

    total: float
    active: float | None = None
    rounded_to: float = 0.0
    beside: float = 0.0


PUBLISHED = {
    "kimi-k2": Published(1000, 32, rounded_to=100),  # "1T"
    "glm-4.5": Published(355, 32),
    "glm-4.6": Published(355, 32),
    "glm-4.5-air": Published(106, 12),
    "qwen3-next-80b-a3b": Published(80, 3),
    "qwen3.5-27b": Published(27),
    "qwen3.5-35b-a3b": Published(35, 3),
    "qwen3.5-122b-a10b": Published(122, 10),
    "qwen3.5-397b-a17b": Published(397, 17),
    "llama-4-scout": Published(109, 17, beside=0.9),  # the vision encoder, of 34 layers
    "llama-4-maverick": Published(400, 17),
    "minimax-m2": Published(230, 10),
    "nemotron-h-56b": Published(56),
    "nemotron-nano-9b-v2": Published(9, rounded_to=0.5),
    "nemotron-3-nano-30b-a3b": Published(31.6, 3.2),
    "nemotron-3-super-120b-a12b": Published(120.6, 12.7),
    "granite-4.0-h-small": Published(32, 9),
    "granite-4.0-h-tiny": Published(7, 1),
    "granite-4.0-h-micro": Published(3, rounded_to=0.5),
    "ernie-4.5-300b-a47b": Published(300, 47),
    "ernie-4.5-21b-a3b": Published(21, 3, rounded_to=2),  # 21.8: Baidu's name cuts off, where others round
    "ernie-4.5-0.3b": Published(0.36),
    "olmo-3-7b": Published(7, rounded_to=1),
    "olmo-3-32b": Published(32),
    "qwen3-vl-8b": Published(8.2),  # as the Qwen3 of this size: 9B with the vision encoder
    "qwen3-vl-32b": Published(32.8),
    "qwen3-vl-30b-a3b": Published(30.5, 3.3),
    "qwen3-vl-235b-a22b": Published(235, 22),
}


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_total_parameters_are_the_published_ones(name: str, published: Published) -> None:
    total = parameters(load_model(name)).total / 1e9 + published.beside
    assert abs(total - published.total) <= max(0.01 * published.total, published.rounded_to / 2)


@pytest.mark.parametrize("name", [name for name, published in PUBLISHED.items() if published.active is not None])
def test_active_parameters_are_the_published_ones(name: str) -> None:
    """With both tables, without the embedding, or without both; rounded to whole billions."""
    model, active = load_model(name), PUBLISHED[name].active
    assert active is not None
    count, table = parameters(model), model.hidden * model.vocab
    fewest = count.active - (1 if model.tied_embeddings else 2) * table
    assert fewest / 1e9 - 0.5 <= active <= count.active / 1e9 + 0.5


def test_nemotron_says_what_it_counts() -> None:
    """3.2B active, 3.6B with embeddings."""
    count = parameters(load_model("nemotron-3-nano-30b-a3b"))
    assert count.active_without_embedding / 1e9 == pytest.approx(3.2, abs=0.05)
    assert count.active / 1e9 == pytest.approx(3.6, abs=0.05)
    assert parameters(load_model("nemotron-3-super-120b-a12b")).active / 1e9 == pytest.approx(12.7, rel=0.01)


def test_qwen3_next_says_79_billion_without_embeddings() -> None:
    model = load_model("qwen3-next-80b-a3b")
    assert (parameters(model).total - 2 * model.hidden * model.vocab) / 1e9 == pytest.approx(79, rel=0.01)


def test_the_released_deepseek_v32_repeats_tables_beside_its_extra_layer() -> None:
    """685B as released, with the extra layer's own copies of the tables; 671B without, and the indexers on top."""
    model = load_model("deepseek-v3.2")
    count, tables = parameters(model), 2 * model.hidden * model.vocab
    assert (count.total + count.mtp + tables) / 1e9 == pytest.approx(685, rel=0.002)
    own = _indexers(7168, 1536, 64, 128, 61)
    assert count.total - parameters(load_model("deepseek-v3")).total == own
    assert count.active - parameters(load_model("deepseek-v3")).active == own


def _indexers(hidden: int, queries: int, heads: int, dim: int, layers: int) -> int:
    return layers * (queries * heads * dim + hidden * (dim + heads) + 2 * dim)


@pytest.mark.parametrize(("vl", "text"), [("qwen3-vl-8b", "qwen3-8b"), ("qwen3-vl-30b-a3b", "qwen3-30b-a3b")])
def test_the_text_side_of_qwen3_vl_is_a_qwen3(vl: str, text: str) -> None:
    found: tuple[Parameters, Parameters] = (parameters(load_model(vl)), parameters(load_model(text)))
    assert found[0] == found[1]
