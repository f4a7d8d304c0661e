"""Speculative decoding: who drafts tokens, how many, and how many of them the model accepts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from steelyard.scenario.base import Count, Spec, mistake
from steelyard.scenario.workload import Accept

DraftMethod = Literal["free", "ngram", "draft", "eagle", "mtp"]


class SpeculativeSpec(Spec):
    """Drafts that each step verifies. Short form: engine.num_speculative_tokens and engine.acceptance, drafts free."""

    method: DraftMethod = Field(
        description="Who drafts: ngram looks the last tokens up in what there is already, on the host; draft is a "
        "smaller model of its own on the same GPUs; eagle a head of one layer on the model's hidden states; mtp the "
        "model's own layers for it (num_nextn_predict_layers); free is nobody, for drafts that cost nothing to make.",
    )
    num_tokens: Count = Field(description="Drafts per request and step.")
    acceptance: Accept | None = Field(
        default=None,
        description="Accepted draft tokens per verify step, for workloads that say nothing themselves: shares such as "
        "[0.8, 0.6, 0.4] by position, or recorded counts such as [2, 0, 3].",
    )
    draft_model: str | None = Field(
        default=None,
        min_length=1,
        description="Of method draft: the smaller model, as in `model`. It needs the model's vocabulary.",
    )

    @model_validator(mode="after")
    def _a_model_where_one_drafts(self) -> SpeculativeSpec:
        if self.method == "draft" and self.draft_model is None:
            raise mistake("missing; method draft needs the model that drafts, such as llama-3.2-1b", "draft_model")
        if self.method != "draft" and self.draft_model is not None:
            raise mistake(f"method {self.method} brings its own; remove this, or choose method draft", "draft_model")
        return self
