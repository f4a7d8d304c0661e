"""Speculative decoding: draft models, and the cost of steps that verify drafts.

As in vLLM, a step first verifies: every request has its newest token and its drafts, and the output head sees all of
them. Then the draft model runs over the same tokens, rejected ones included, which gives each request its first draft,
and over one token of each request for every further draft. Prompts run through both models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steelyard.cost.compile import compile_cost
from steelyard.cost.compiled import CompiledCost, DecodeLine, RankBatch, Stretches
from steelyard.cost.host import HostTerms
from steelyard.cost.kernels import FirstUses
from steelyard.cost.source import CostSource, Floats, Provenance
from steelyard.cost.step import StepTime
from steelyard.errors import UserError
from steelyard.model import (
    DenseFfn,
    Elementwise,
    Gemm,
    Layer,
    Layout,
    ModelSpec,
    MoeFfn,
    Operator,
    Routing,
    Stage,
    as_layout,
    check_layout,
    kv_bytes_per_token,
    load_model,
    stage_weight_bytes,
)
from steelyard.scenario import DraftMethod, EngineSpec

NGRAM_TOKEN_SECONDS = 2e-9  # per token searched for an n-gram: a few instructions; estimated, not measured


@dataclass(frozen=True)
class Draft:
    """A draft model.

    A ``joined`` one takes the target's hidden states beside the embedding of each token, through its own matrix, and
    shares the target's embedding and output head. Each pass runs one of ``copies`` of its layers.
    """

    model: ModelSpec
    joined: bool
    norms: int = 0  # vectors beyond those of its layers
    copies: int = 1

    def layout(self, target: int | Layout) -> Layout:
        """Its layout: split over the target's GPUs, or without experts over those of one rank."""
        layout = as_layout(target)
        return layout if _has_experts(self.model) else Layout(tp=layout.tp)

    def first_operators(self) -> tuple[Operator, ...]:
        """The operators that join a token's embedding and hidden state, unsplit on every GPU."""
        if not self.joined:
            return ()
        hidden, size = self.model.hidden, self.model.dtype_bytes
        norm = Elementwise("join_norm", 2 * 2 * hidden * size)
        return (*([norm] if self.norms > 0 else []), Gemm("join_proj", 2 * hidden, hidden, size, self.model.compute))

    def weight_bytes(self, target: int | Layout) -> int:
        """Bytes of its weights on each GPU."""
        model, whole = self.model, not self.joined
        layers = stage_weight_bytes(Stage(model, first=whole, last=whole), replace(self.layout(target), pp=1))
        own = (2 * model.hidden**2 + self.norms * model.hidden) * model.dtype_bytes if self.joined else 0
        return self.copies * (layers + own)

    def kv_bytes_per_token(self, kv_dtype: str, target: int | Layout) -> int:
        """Bytes of one token in its cache, on each GPU."""
        return self.copies * kv_bytes_per_token(self.model, kv_dtype, replace(self.layout(target), pp=1))


def find_draft(engine: EngineSpec, target: ModelSpec, base_dir: Path) -> Draft | None:
    """The draft model of a target; None if drafts come from n-grams, or there are none."""
    wanted = engine.speculative
    if wanted is None or wanted.method in ("free", "ngram"):
        return None
    if wanted.method == "eagle":
        return eagle_head(target)
    if wanted.method == "mtp":
        return mtp_layers(target, wanted.num_tokens)
    assert wanted.draft_model is not None
    model = load_model(wanted.draft_model, base_dir=base_dir)
    if model.vocab != target.vocab:
        raise UserError(
            f"engine.speculative.draft_model: {model.name} has a vocabulary of {model.vocab} and {target.name} one of "
            f"{target.vocab}; a draft model needs the same one, as models of one family have"
        )
    return Draft(model, joined=False)


def check_drafted(target: ModelSpec) -> None:
    """Refuse drafts for models with recurrent layers: what happens to a state when drafts are rejected is not
    simulated."""
    if target.recurrents:
        raise UserError(f"engine.speculative: drafts over the recurrent state of {target.name} are not simulated")


def eagle_head(target: ModelSpec) -> Draft:
    """EAGLE's single layer, of the target's shape but dense: as wide as the FFN that one token uses.

    It has no norm before attention and none at the end.
    """
    check_drafted(target)
    layer = next((layer for layer in target.layers if isinstance(layer.ffn, DenseFfn)), target.layers[0])
    ffn, own = layer.ffn, layer.attention
    assert ffn is not None and own is not None
    width = ffn.intermediate if isinstance(ffn, DenseFfn) else ffn.top_k * ffn.expert_intermediate
    if isinstance(ffn, MoeFfn):
        width += ffn.shared_intermediate
    attention = replace(own, window=None, chunked=False, qkv_bias=False, o_bias=False, qk_norm=False, sinks=False)
    one = Layer(attention, DenseFfn(width))
    model = replace(target, name=f"{target.name}-eagle", layers=(one,), quantization=None, mtp_layers=0, order=())
    return Draft(model, joined=True, norms=-1)


def mtp_layers(target: ModelSpec, tokens: int) -> Draft:
    """The target's multi-token prediction layers: like its last layer, with norms of both inputs and at the end."""
    if not target.mtp_layers:
        raise UserError(
            f"engine.speculative.method: {target.name} has no layers of its own to draft with "
            "(num_nextn_predict_layers); use eagle, draft or ngram"
        )
    if tokens % target.mtp_layers:
        raise UserError(
            f"engine.speculative.num_tokens: {tokens} is no multiple of the {target.mtp_layers} layers that "
            f"{target.name} drafts with"
        )
    model = replace(
        target, name=f"{target.name}-mtp", layers=(replace(target.layers[-1], count=1),), mtp_layers=0, order=()
    )
    return Draft(model, joined=True, norms=3, copies=target.mtp_layers)


def compile_speculative(
    target: CompiledCost,
    engine: EngineSpec,
    draft: Draft | None,
    layout: int | Layout,
    *sources: CostSource,
    terms: HostTerms | None = None,
    routing: Routing | None = None,
) -> SpeculativeCost:
    """The cost of an engine that verifies drafts, from the cost of its model's plain steps.

    ``routing`` is that of the target's experts, which a joined draft model shares.
    """
    method: DraftMethod = "free" if engine.speculative is None else engine.speculative.method
    if draft is None:
        return SpeculativeCost(target, engine, ngram=method == "ngram")
    own = draft.layout(layout)
    check_layout(draft.model, own)
    runs = engine
    if not draft.joined:  # one more token per request; vLLM captures it piecewise only
        pieces = engine.cudagraph not in ("none", "full_decode_only")
        most = engine.max_num_batched_tokens + engine.max_num_seqs
        runs = engine.replace(cudagraph="piecewise" if pieces else "none", max_num_batched_tokens=most)
    chosen = routing if draft.joined else None
    cost = compile_cost(draft.model, own, runs, *sources, terms=terms, routing=chosen, first=draft.first_operators())
    return SpeculativeCost(target, engine, cost, further_token=not draft.joined)


class SpeculativeCost:
    """Times of steps in which most requests have drafts.

    A request with all its drafts is recognised by its number of tokens, as in vLLM: a step of only such requests
    replays a full graph. ``further_token``: the draft model has not seen the newest token yet.
    """

    def __init__(
        self,
        target: CompiledCost,
        engine: EngineSpec,
        draft: CompiledCost | None = None,
        *,
        ngram: bool = False,
        further_token: bool = False,
    ) -> None:
        self.target = target
        self.draft = draft
        self._drafts = engine.drafts
        self._ngram = ngram
        width, most = 1 + engine.drafts, engine.max_num_seqs
        self._width = width
        self._verify = target.widened(width, width, target.graphs.of_width(width, most))
        if draft is not None:
            seen = width + further_token
            self._first = draft.widened(seen, 1, draft.graphs.of_width(seen, most))

    @property
    def chosen(self) -> Mapping[str, str]:
        """The source used, by operator."""
        return self.target.chosen

    @property
    def families(self) -> dict[str, set[str]]:
        """The sources used, by family of operators."""
        if self.draft is None:
            return self.target.families
        return {name: found | self.draft.families.get(name, set()) for name, found in self.target.families.items()}

    @property
    def shares(self) -> Mapping[str, Mapping[Provenance, float]]:
        """Of each family's time, by provenance: the target's, which takes most of it."""
        return self.target.shares

    def first_uses(self) -> FirstUses | None:
        """The kernels of a fresh engine."""
        return self.target.first_uses()

    def by_provenance(self, done: Stretches) -> Floats:
        """Approximate GPU seconds by provenance; of drafts, only the first pass of each step."""
        found = self.target.by_provenance(done)
        return found if self.draft is None else found + self.draft.by_provenance(done)

    def by_family(self, done: Stretches, seconds: float) -> dict[str, float]:
        """By kind of work; all of the draft's counts as attention."""
        return self.target.by_family(done, seconds)

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        """A step of requests without drafts, as a line that is valid for this step only."""
        return self.mixed(n, kv, longest, []).gpu, 0.0, kv

    def decode_host(self, n: int) -> tuple[float, float, float]:
        """Prepare, launch and tail of such a step, for requests with almost nothing cached."""
        time = self.mixed(n, n, 1, [])
        return time.prepare, time.launch, time.tail

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        """A step with n requests of one token and chunks of (tokens, context before them), drafts among them."""
        return self.together([RankBatch(n, kv, longest, chunks)])

    def together(self, batches: Sequence[RankBatch | None]) -> StepTime:
        """The same of all data-parallel ranks, each with its batch or a dummy one (None)."""
        ranks = [None if batch is None else self._classified(batch) for batch in batches]
        time = _step(self._verify, ranks)
        if self._ngram:
            return time._replace(
                prepare=time.prepare + NGRAM_TOKEN_SECONDS * max(_cached(rank).kv for rank in ranks if rank)
            )
        if self.draft is None:
            return time
        first = _step(self._first, ranks)
        gpu, launch, tail = self._further(self.draft, [None if rank is None else _cached(rank) for rank in ranks])
        launch += _launching(first.launch, self.draft.host.terms)
        return time._replace(gpu=time.gpu + first.gpu + gpu, launch=time.launch + launch, tail=tail or first.gpu)

    def decodes_together(self, ranks: Sequence[tuple[int, int, int] | None]) -> DecodeLine:
        """Steps of requests without drafts on all ranks; valid for one step."""
        batches = [None if rank is None else RankBatch(*rank) for rank in ranks]
        return DecodeLine(self.together(batches).gpu, 0.0, 0, 0, 1)

    def decodes_host(self, decodes: Sequence[int | None]) -> tuple[float, float, float]:
        """Prepare, launch and tail of such a step."""
        time = self.together([None if n is None else RankBatch(n, n, 1) for n in decodes])
        return time.prepare, time.launch, time.tail

    def _classified(self, batch: RankBatch) -> RankBatch:
        """The batch with full verifications as decodes and everything else as chunks."""
        width, chunks = self._width, batch.chunks
        verified = [before for tokens, before in chunks if tokens == width and before]
        others = [each for each in chunks if each[0] != width or not each[1]] if len(verified) < len(chunks) else []
        if batch.decodes:
            others += [(1, batch.kv // batch.decodes - 1)] * batch.decodes
        if not verified:
            return RankBatch(0, 0, 0, others)
        return RankBatch(len(verified), sum(verified) + len(verified) * width, max(verified) + width, others)

    def _further(self, draft: CompiledCost, ranks: Sequence[RankBatch | None]) -> tuple[float, float, float]:
        """GPU seconds of all draft passes after the first, host seconds to launch them, and GPU seconds after that.

        Captured passes are one graph; others are launched one by one.
        """
        passes = self._drafts - 1
        if not passes:
            return 0.0, 0.0, 0.0
        times = [
            _step(draft, [None if rank is None else _grown(rank, i) for rank in ranks]) for i in range(1, 1 + passes)
        ]
        gpu = sum(time.gpu for time in times)
        each = _launching(times[0].launch, draft.host.terms)
        most = max(rank.decodes for rank in ranks if rank is not None)
        if draft.graphs.launch(most, decode_only=True) == "whole":
            return gpu, each, gpu
        return gpu, passes * each, times[-1].gpu


def _step(cost: CompiledCost, ranks: Sequence[RankBatch | None]) -> StepTime:
    """A step of one rank by itself, or of several together."""
    if len(ranks) > 1:
        return cost.together(ranks)
    (batch,) = ranks
    assert batch is not None
    if batch.chunks:
        return cost.mixed(*batch[:3], list(batch.chunks))
    a, b, _ = cost.decode_line(*batch[:3])
    return StepTime(a + b * batch.kv, *cost.decode_host(batch.decodes))


def _cached(batch: RankBatch) -> RankBatch:
    """Every request of a batch with one token, with its cached tokens after the step."""
    others = [tokens + before for tokens, before in batch.chunks]
    return RankBatch(batch.requests, batch.kv + sum(others), max(batch.longest, *others, 0))


def _grown(batch: RankBatch, tokens: int) -> RankBatch:
    """The same with ``tokens`` more of each request."""
    return RankBatch(batch.decodes, batch.kv + tokens * batch.decodes, batch.longest + tokens)


def _launching(launch: float, terms: HostTerms) -> float:
    """Host seconds that count in a step of the draft model: the host does not wait for what it samples.

    A full graph takes about as long to launch as a captured piece.
    """
    return launch - terms.sample if launch > terms.sample else terms.pieces


def _has_experts(model: ModelSpec) -> bool:
    return any(isinstance(layer.ffn, MoeFfn) for layer in model.layers)
