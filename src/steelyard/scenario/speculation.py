"""Speculative decoding: draft method, draft tokens, acceptance."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from steelyard.scenario.base import Spec, mistake
from steelyard.scenario.numbers import Few, unit
from steelyard.scenario.workload import Accept

DraftMethod = Literal["free", "ngram", "draft", "eagle", "mtp"]


class SpeculativeSpec(Spec):
    """Speculative decoding. Short form: engine.num_speculative_tokens and engine.acceptance, with free drafts."""

    method: DraftMethod = Field(
        description="Draft method. ngram: looks up the last tokens in the context, on the host; draft: a smaller model "
        "on the same GPUs; eagle: a head of one layer on the model's hidden states; mtp: the model's own layers for it "
        "(num_nextn_predict_layers); free: drafts take no time to make.",
    )
    num_tokens: Few = Field(description="Draft tokens per request and step.", json_schema_extra=unit("tokens"))
    acceptance: Accept | None = Field(
        default=None,
        description="Accepted draft tokens per verify step, for workloads without `accept`: shares by position such as "
        "[0.8, 0.6, 0.4], or recorded counts such as [2, 0, 3].",
        json_schema_extra=unit("tokens, or share of 1"),
    )
    draft_model: str | None = Field(
        default=None,
        min_length=1,
        description="For method draft: the smaller model, as in `model`. It needs the same vocabulary.",
    )

    @model_validator(mode="after")
    def _a_model_where_one_drafts(self) -> SpeculativeSpec:
        if self.method == "draft" and self.draft_model is None:
            raise mistake("missing; method draft needs the model that drafts, such as llama-3.2-1b", "draft_model")
        if self.method != "draft" and self.draft_model is not None:
            raise mistake(f"method {self.method} brings its own; remove this, or choose method draft", "draft_model")
        return self
