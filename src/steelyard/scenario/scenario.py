"""One scenario: everything a run depends on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError, model_validator

from steelyard.errors import did_you_mean
from steelyard.scenario.base import Spec, Written, mistake
from steelyard.scenario.dynamics import ChangeSpec, check_dynamics
from steelyard.scenario.engine import EngineSpec
from steelyard.scenario.fleet import Fleet, PoolSpec, Role
from steelyard.scenario.model import Model, ModelRef
from steelyard.scenario.numbers import PositiveSeconds, Seconds, Seed
from steelyard.scenario.slo import SloSpec
from steelyard.scenario.workload import Workloads, WorkloadSpec


class CostSpec(Spec):
    """Sources of step times."""

    source: Literal["auto", "silicon", "transferred", "analytic"] = Field(
        default="auto",
        description="auto: the best source for each operator; silicon: NVIDIA's tables of measured operators first "
        "(`pip install steelyard[silicon]`); transferred: first the profile of a GPU with the same multiprocessors; "
        "analytic: the roofline only.",
    )
    profile: str | None = Field(
        default=None,
        min_length=1,
        description="Your own profile, used before any other source: a file of `steelyard profile`, or a folder of "
        "LLMServingSim, Vidur or Frontier.",
    )
    calibration: str | None = Field(
        default=None,
        min_length=1,
        description="Times of the host: a file of `steelyard calibrate`; those of a usual H200 host if not given.",
    )


class SteadySpec(Spec):
    """The part of the run whose figures count as steady."""

    start: Seconds = Field(description="Second at which the window starts.")
    end: PositiveSeconds | None = Field(
        default=None, description="Second at which the window ends; the end of the run if not given."
    )

    @model_validator(mode="after")
    def _forward(self) -> SteadySpec:
        if self.end is not None and self.end <= self.start:
            raise mistake(f"not after start ({self.start:g} s)", "end")
        return self


class Scenario(Written):
    """A serving scenario: a model on a fleet under a workload."""

    model: Model = Field(description="The model to serve.")
    fleet: Fleet = Field(description="The fleet. Short form: {gpu, replicas, tp, router, price_per_hour}.")
    engine: EngineSpec = Field(default=EngineSpec(), description="Engine settings, in vLLM's names.")
    workload: Workloads = Field(description="The requests: one workload, a list, or {mix: [...]}.")
    slo: SloSpec = Field(default=SloSpec(), description="Latency limits in seconds.")
    dynamics: tuple[ChangeSpec, ...] = Field(
        default=(), max_length=10_000, description="Faults during the run: crashes, slow GPUs, degraded links."
    )
    steady: SteadySpec | None = Field(
        default=None,
        description="The steady window; found by MSER-5 if not given (docs/figures.md).",
    )
    cost: CostSpec = Field(default=CostSpec(source="auto"), description="Where step times come from.")
    seed: Seed = Field(default=0, description="Seed of everything random; the same seed gives the same result.")

    @model_validator(mode="after")
    def _coherent(self) -> Scenario:
        for key, router in (("router", self.fleet.router), ("decode_router", self.fleet.decode_router)):
            if router == "slo-aware" and self.slo.ttft is None:
                raise mistake("slo-aware needs a limit to keep; set slo.ttft", "fleet", key)
        for i, pool in enumerate(self.fleet.pools):
            self._check_pool(i, pool)
        self._check_models()
        check_dynamics(self.fleet, self.dynamics, lambda pool: self.model_of(pool).called)
        self._check_held()
        return self

    def model_of(self, pool: PoolSpec) -> ModelRef:
        """The model of a pool."""
        return pool.model or self.model

    def asked_model(self, spec: WorkloadSpec) -> str:
        """The name of the model that a workload asks for."""
        return spec.model or self.model.called

    def engine_of(self, pool: PoolSpec) -> EngineSpec:
        """The settings of a pool's engines."""
        if pool.engine is None:
            return self.engine
        own = pool.engine.model_dump(exclude_unset=True)
        return EngineSpec.model_validate({**self.engine.model_dump(exclude_unset=True), **own})

    def _check_pool(self, i: int, pool: PoolSpec) -> None:
        try:
            engine = self.engine_of(pool)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            context = first.get("ctx", {})
            raise mistake(
                f"with the scenario's own engine settings: {context.get('message', first['msg'])}",
                *("fleet", "pools", i, "engine"),
                *context.get("path", ()),
            ) from None
        if engine.drafts:
            self._check_acceptance(engine, self.model_of(pool).called)

    def _check_models(self) -> None:
        """Each name means one model, and a pool serves each model that a workload asks for."""
        served = [self.model_of(pool).called for pool in self.fleet.pools]
        known = {self.model.called: self.model}
        for i, pool in enumerate(self.fleet.pools):
            model = self.model_of(pool)
            if known.setdefault(model.called, model) != model:
                raise mistake(
                    f"two different models are called {model.called}; give one another name",
                    *("fleet", "pools", i, "model", "name"),
                )
        self._check_both_sides()
        for i, spec in enumerate(self.workload.mix):
            wanted = self.asked_model(spec)
            if wanted not in served:
                raise mistake(f"no pool serves {wanted}; {did_you_mean(wanted, served)}", "workload", "mix", i, "model")

    def _check_both_sides(self) -> None:
        """With prefill/decode disaggregation each model has pools of both roles."""
        if not self.fleet.of_role("prefill"):
            return
        sides: list[tuple[Role, ...]] = [("prefill",), ("decode", "attention")]
        for roles, others in (sides, sides[::-1]):
            there = {self.model_of(pool).called for pool in self.fleet.of_role(*others)}
            for i, pool in enumerate(self.fleet.pools):
                if pool.role in roles and self.model_of(pool).called not in there:
                    raise mistake(
                        f"no {others[0]} pool serves {self.model_of(pool).called}; give one",
                        *("fleet", "pools", i, "model"),
                    )

    def _check_held(self) -> None:
        """Refuse held blocks if the next round may not find them."""
        apart = any(pool.role != "serve" for pool in self.fleet.pools)
        caching = all(self.engine_of(pool).enable_prefix_caching for pool in self.fleet.pools)
        for i, spec in enumerate(self.workload.mix):
            for k, stage in enumerate(spec.plan or ()):
                if stage.kv == "held" and (apart or not caching):
                    why = "without prefix caching" if not caching else "between prefill and decode pools"
                    place = ("workload", "mix", i, "plan", k, "kv")
                    raise mistake(f"a round's blocks cannot be held {why}; use kept or dropped", *place)

    def _check_acceptance(self, engine: EngineSpec, model: str) -> None:
        """Speculation needs an acceptance: there is no default."""
        long = engine.speculative is not None
        tokens = "speculative.num_tokens" if long else "num_speculative_tokens"
        place = ("engine", "speculative", "acceptance") if long else ("engine", "acceptance")
        for i, spec in enumerate(self.workload.mix):
            if self.asked_model(spec) != model:
                continue
            accept = spec.accept or engine.accepted
            if accept is None:
                raise mistake(
                    f"missing; with {tokens} set, say how many drafts are accepted: a list such "
                    "as [2, 0, 3], or {probabilities: [0.8, 0.6, 0.4]}",
                    *place,
                )
            if accept.most > engine.drafts:
                raise mistake(
                    f"accepts {accept.most} draft tokens, but engine.{tokens} is {engine.drafts}",
                    *(("workload", "mix", i, "accept") if spec.accept else place),
                )
