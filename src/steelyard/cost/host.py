"""The host's part of a step: scheduling, preparing inputs, launching kernels, handling results and clients.

With asynchronous scheduling the host works one step ahead of the GPU, so a decode step takes the longer of the two. A
step with prompts is launched layer by layer, or kernel by kernel above the largest captured size. Meanwhile the host
processes no result: the tokens of the previous step are delayed by the rest of the launch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from steelyard.errors import UserError, quoted
from steelyard.files.jsontext import json_object
from steelyard.quoting import shortened

# Share of a kernel-by-kernel launch that is lost to other threads of the engine while other steps run. From the lone
# prompts of three captures; hosts differ (docs/calibration.md).
HINDERED = 0.14
Launch = Literal["whole", "pieces", "eager"]  # one graph, a graph around each layer's attention, or none
_MOST_SECONDS = 1.0  # of a term: larger ones are mistakes of the unit; chosen
_MOST_COMPILING = 60.0  # the same for compiling


@dataclass(frozen=True)
class HostTerms:
    """Seconds of one host, one term for each thing that an engine does. `steelyard calibrate` fits them to a capture.

    The defaults are means over the H200 hosts that were captured with vLLM 0.26, each calibrated by itself
    (`docs/calibration.md` has the table). Hosts differ from them by a fifth.
    """

    step: float = 1.98e-3  # handle a result, schedule the next step and prepare its inputs
    request: float = 27e-6  # the same, for each request of the step
    prompt: float = 0.30e-3  # receive a new request, which delays the next step
    sample: float = 0.85e-3  # after the layers: launch sampling and the copy of its result
    pieces: float = 0.26e-3  # launch one layer as captured pieces around attention
    eager: float = 0.75e-3  # launch one layer kernel by kernel
    experts: float = 1.59e-3  # the same, of a layer with routed experts
    submit: float = 0.35e-3  # the front end takes up one request
    ingest: float = 0.30e-3  # from there until it is in the engine's queue
    ingest_token: float = 0.33e-6  # and for each token of its prompt
    wake: float = 0.45e-3  # an idle engine notices a request in its queue
    output: float = 1.45e-3  # from a step's result to the client
    output_request: float = 30e-6  # and for each request of the step
    compile: float = 1.1  # compile a typical kernel that a fresh engine has not run before

    @property
    def taking_in(self) -> tuple[float, float]:
        """Seconds that a new request costs a running engine, and each token of its prompt: a thread of the engine's
        process reads it, and the process runs one thread at a time."""
        return self.prompt, self.ingest_token


NO_HOST = HostTerms(**{term.name: 0.0 for term in fields(HostTerms)})  # a host that takes no time


def read_terms(path: Path) -> HostTerms:
    """The terms of a calibration file."""
    terms = json_object(path, "a file that `steelyard calibrate` wrote").get("terms")
    if not isinstance(terms, dict):
        raise UserError(f"{path}: has no `terms`; give a file that `steelyard calibrate` wrote")
    known = [term.name for term in fields(HostTerms)]
    for name, value in terms.items():
        if name not in known:
            raise UserError(f"{path}: terms.{shortened(name)}: no such term; there are {', '.join(known)}")
        most = _MOST_COMPILING if name == "compile" else _MOST_SECONDS
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < most:
            raise UserError(f"{path}: terms.{name}: must be seconds, 0 to {most:g} (found {quoted(value)})")
    return HostTerms(**terms)


@dataclass(frozen=True)
class HostCost:
    """Host seconds of one model's steps, by how they are launched."""

    terms: HostTerms
    layers: int
    expert_layers: int  # those of them with routed experts

    def prepare(self, requests: int) -> float:
        """Seconds until a step's first kernel is launched."""
        return self.terms.step + requests * self.terms.request

    def launch(self, how: Launch) -> float:
        """Seconds from there to the last one."""
        terms = self.terms
        if how == "whole":
            return terms.sample
        if how == "pieces":
            return self.layers * terms.pieces + terms.sample
        return (self.layers - self.expert_layers) * terms.eager + self.expert_layers * terms.experts + terms.sample
