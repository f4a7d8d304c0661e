"""Any split of samples over ranks, lanes, parts and batches gives the same update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from steelyard.errors import UserError
from steelyard.live.train.lane import LaneState
from steelyard.live.train.weights import MODEL, load_model, read_tensors
from support.trainers import distance, running, samples_of, settings_of, trained

# Sums in another order differ in their last bits, which AdamW magnifies where gradients are almost 0. A step moves
# weights by about 1e-3.
SAME = 1e-4
STEPS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("group")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, torch.Tensor]:
    """Weights that one rank comes to."""
    return trained(settings_of(folder, "alone"), STEPS)


def test_training_moves_weights_and_is_exact(folder: Path, alone: dict[str, torch.Tensor]) -> None:
    assert distance(alone, read_tensors(folder / "model" / MODEL)) > 10 * SAME
    assert distance(alone, trained(settings_of(folder, "alone-again"), STEPS)) == 0
    assert distance(alone, trained(settings_of(folder, "longer"), STEPS + 1)) > 5 * SAME


def test_small_batches_make_no_difference(folder: Path, alone: dict[str, torch.Tensor]) -> None:
    settings = settings_of(folder, "micro", micro_tokens=64)
    assert distance(alone, trained(settings, STEPS)) < SAME


def test_parts_of_a_step_make_no_difference(folder: Path, alone: dict[str, torch.Tensor]) -> None:
    with running(settings_of(folder, "parts")) as found:
        for step in range(STEPS):
            samples = samples_of(step)
            first = found.group.train(step, samples[:4], last=False)
            assert (first.updated, first.version, first.norm) == (False, step, 0.0)
            second = found.group.train(step, samples[4:], last=True)
            assert (second.updated, second.version) == (True, step + 1)
        assert distance(alone, found.weights()) < SAME


def test_two_ranks_make_no_difference(folder: Path, alone: dict[str, torch.Tensor]) -> None:
    with running(settings_of(folder, "ranks"), ranks=2) as found:
        for step in range(STEPS):
            found.group.train(step, samples_of(step), last=True)
        assert distance(alone, found.weights()) < SAME


@pytest.mark.parametrize("passes", [1, 2])
def test_a_lane_makes_no_difference(folder: Path, passes: int) -> None:
    settings = settings_of(folder, f"one-{passes}", passes=passes)
    with running(replace(settings, folder=folder / f"lane-{passes}")) as found:
        found.start_thread("a")
        step = found.make_active("a", epoch=1, step=0)
        for number in range(step, STEPS):
            assert found.group.train(number, samples_of(number), last=True).lanes == ("a",)
        assert distance(trained(settings, STEPS), found.weights()) < SAME


def test_tokens_that_were_not_generated_do_not_count(folder: Path) -> None:
    """A sample whose tail is the result of a tool teaches as much as one without that tail."""
    whole = samples_of(0)
    with running(settings_of(folder, "tails")) as found:
        tailed = [
            replace(each, tokens=[*each.tokens, 1, 2], generated=[*each.generated, False, False]) for each in whole
        ]
        report = found.group.train(0, tailed, last=True)
        assert report.tokens == sum(sum(each.generated) for each in whole)
        with running(settings_of(folder, "no-tails")) as other:
            other.group.train(0, whole, last=True)
            assert distance(found.weights(), other.weights()) < SAME


def test_reports_say_what_was_trained_on(folder: Path) -> None:
    with running(settings_of(folder, "reports", passes=2)) as found:
        found.group.train(0, samples_of(0), last=True)
        samples = [replace(each, versions=[0] + [1] * (len(each.versions) - 1)) for each in samples_of(1)]
        report = found.group.train(1, samples, last=True)
    assert report.samples == len(samples) and report.redone == 0 and report.lanes == ()
    assert report.mean_reward == pytest.approx(sum(each.reward for each in samples) / len(samples))
    assert report.staleness == ((0, report.tokens - len(samples)), (1, len(samples)))
    assert report.norm > 0 and 0 <= report.truncated < 1 and 0 <= report.clipped < 1


def test_the_first_pass_is_never_clipped_and_later_ones_are(folder: Path) -> None:
    samples = samples_of(0)
    with running(settings_of(folder, "clip-1", learning_rate=0.03)) as found:
        assert found.group.train(0, samples, last=True).clipped == 0
    with running(settings_of(folder, "clip-2", learning_rate=0.03, passes=2)) as found:
        assert found.group.train(0, samples, last=True).clipped > 0


def test_a_reference_holds_weights_back(folder: Path) -> None:
    """A second pass of the same samples moves less if it has to stay near the reference."""
    losses = {}
    for kl in (0.0, 100.0):
        with running(settings_of(folder, f"kl-{kl}", kl=kl, passes=3)) as found:
            before = found.group.logprobs([1, 2, 3, 4])
            found.group.train(0, samples_of(0), last=True)
            after = found.group.logprobs([1, 2, 3, 4])
            losses[kl] = sum(abs(one - other) for one, other in zip(before, after, strict=True))
    assert losses[100.0] < losses[0.0]


def test_steps_come_in_order(folder: Path) -> None:
    with running(settings_of(folder, "order")) as found:
        with pytest.raises(UserError, match="step 1: must be 0"):
            found.group.train(1, samples_of(1), last=True)
        with pytest.raises(UserError, match="version 1: must be 0"):
            found.group.publish(1)
        found.group.train(0, samples_of(0), last=True)
        with pytest.raises(UserError, match="step 0: must be 1"):
            found.group.train(0, samples_of(0), last=True)


def test_published_weights_are_a_model_and_only_the_last_are_kept(folder: Path) -> None:
    settings = settings_of(folder, "published", kept=2)
    with running(settings) as found:
        for step in range(4):
            published = found.group.publish(step)
            assert found.group.publish(step) == published  # once more changes nothing
            found.group.train(step, samples_of(step), last=True)
        tokens = [5, 6, 7, 8, 9]
        ids = torch.tensor([tokens])
        with torch.no_grad():
            logits = load_model(found.group.publish(4))(input_ids=ids).logits
        wanted = logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None]).squeeze(-1)
        assert found.group.logprobs(tokens) == pytest.approx(wanted.tolist(), abs=1e-5)
    kept = sorted(each.name for each in (settings.folder / "published").iterdir())
    assert kept == ["version-00000003", "version-00000004"]
    assert (published / "tokenizer.json").read_bytes() == (settings.model / "tokenizer.json").read_bytes()


def test_half_precision_is_published_if_wanted(folder: Path) -> None:
    with running(settings_of(folder, "half", published="bfloat16")) as found:
        assert {tensor.dtype for tensor in found.weights().values()} == {torch.bfloat16}
        load_model(found.group.publish(0))


@pytest.mark.parametrize("change", [{"learning_rate": 0.0}, {"passes": 0}, {"kl": -1.0}, {"clip": float("nan")}])
def test_settings_out_of_range_are_refused(folder: Path, change: dict[str, float]) -> None:
    with pytest.raises(UserError, match=rf"TrainerSettings\.{next(iter(change))}: must be"):
        settings_of(folder, "wrong", **change)


def test_nobody_is_activated_who_is_not_ready(folder: Path) -> None:
    with running(settings_of(folder, "ready")) as found:
        assert not found.group.activate("nobody")
        found.start_thread("a")
        found.wait("a", LaneState.IDLE)
        assert not found.group.activate("a")
