"""One scenario: everything a run depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from steelyard.scenario.base import Spec, Whole, mistake
from steelyard.scenario.dynamics import ChangeSpec, check_dynamics
from steelyard.scenario.engine import EngineSpec
from steelyard.scenario.fleet import Fleet, PoolSpec
from steelyard.scenario.slo import SloSpec
from steelyard.scenario.workload import Workloads


class ModelRef(Spec):
    """Which model. Short form: the bare name or path."""

    config: str = Field(
        min_length=1, description="Catalog name (`steelyard models`), or path of a config.json or folder."
    )
    dtype: Literal["auto", "bfloat16", "float16", "fp8"] = Field(
        default="auto", description="Type of the weights; auto is what the config says."
    )
    quantization: Literal["none", "fp8", "fp8_block", "int8", "int4", "awq", "nvfp4", "mxfp4"] | None = Field(
        default=None, description="Weight quantization; what the config says if not given, 16 bits if 'none'."
    )


def expand_model(value: Any) -> Any:
    """A bare name or path."""
    return {"config": value} if isinstance(value, str) else value


Model = Annotated[ModelRef, BeforeValidator(expand_model, json_schema_input_type=str | ModelRef)]


class CostSpec(Spec):
    """Where step times come from."""

    source: Literal["auto", "silicon", "analytic"] = Field(
        default="auto",
        description="auto: the best source there is for each operator; silicon: first NVIDIA's database of measured "
        "operators, which `pip install steelyard[silicon]` brings; analytic: the roofline only.",
    )
    profile: str | None = Field(
        default=None,
        min_length=1,
        description="A profile of your own, asked before any other: the file that `steelyard profile` wrote, or a "
        "folder of LLMServingSim, Vidur or Frontier.",
    )
    calibration: str | None = Field(
        default=None,
        min_length=1,
        description="The host's times, as `steelyard calibrate` wrote them; those of a usual H200 host if not given.",
    )


class Scenario(Spec):
    """What is simulated: a model on a fleet under a workload."""

    name: str = Field(default="scenario", min_length=1, description="Name of the run; the file's name if not given.")
    model: Model = Field(description="The model to serve.")
    fleet: Fleet = Field(description="What serves it. Short form: {gpu, replicas, tp, router, price_per_hour}.")
    engine: EngineSpec = Field(default=EngineSpec(), description="Engine settings, in vLLM's names.")
    workload: Workloads = Field(description="Who asks for what: one workload, a list, or {mix: [...]}.")
    slo: SloSpec = Field(default=SloSpec(), description="What counts as good service, in seconds.")
    dynamics: tuple[ChangeSpec, ...] = Field(
        default=(), description="What happens to the fleet meanwhile: crashes, slow GPUs, degraded links."
    )
    cost: CostSpec = Field(default=CostSpec(source="auto"), description="The source of step times.")
    seed: Whole = Field(default=0, description="Seed of everything random; the same seed gives the same result.")

    _base_dir: Path = PrivateAttr(default_factory=Path)
    _source: str = PrivateAttr(default="scenario")

    @property
    def base_dir(self) -> Path:
        """The folder that relative paths of the scenario start from."""
        return self._base_dir

    @property
    def source(self) -> str:
        """What messages about the scenario call it: its file, if it came from one."""
        return self._source

    def based_in(self, folder: Path, source: str | None = None) -> Scenario:
        """The same scenario with its relative paths starting from another folder, and told to be from ``source``."""
        copy = self.model_copy()
        copy._base_dir = folder
        copy._source = source or self._source
        return copy

    @model_validator(mode="after")
    def _coherent(self) -> Scenario:
        if {"/", "\\"} & set(self.name) or self.name in (".", ".."):
            raise mistake("must be usable as a folder's name: no slashes", "name")
        for key, router in (("router", self.fleet.router), ("decode_router", self.fleet.decode_router)):
            if router == "slo-aware" and self.slo.ttft is None:
                raise mistake("slo-aware needs a limit to keep; set slo.ttft", "fleet", key)
        for i, pool in enumerate(self.fleet.pools):
            self._check_pool(i, pool)
        check_dynamics(self.fleet, self.dynamics)
        self._check_held()
        return self

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
            self._check_acceptance(engine)

    def _check_held(self) -> None:
        """Blocks can be held where the next round comes back to them and finds them."""
        apart = any(pool.role != "serve" for pool in self.fleet.pools)
        caching = all(self.engine_of(pool).enable_prefix_caching for pool in self.fleet.pools)
        for i, spec in enumerate(self.workload.mix):
            for k, stage in enumerate(spec.plan or ()):
                if stage.kv == "held" and (apart or not caching):
                    why = "without prefix caching" if not caching else "between prefill and decode pools"
                    place = ("workload", "mix", i, "plan", k, "kv")
                    raise mistake(f"a round's blocks cannot be held {why}; use kept or dropped", *place)

    def _check_acceptance(self, engine: EngineSpec) -> None:
        """Speculation without a word on acceptance would mean a number nobody gave."""
        long = engine.speculative is not None
        tokens = "speculative.num_tokens" if long else "num_speculative_tokens"
        place = ("engine", "speculative", "acceptance") if long else ("engine", "acceptance")
        for i, spec in enumerate(self.workload.mix):
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
