"""From a config.json to a `ModelSpec`: pick the family, read its layers, count the equal ones."""

from __future__ import annotations

from dataclasses import replace

from steelyard.errors import UserError, quoted
from steelyard.model.config import MOST_CONTEXT, Config
from steelyard.model.families import FAMILIES, Family
from steelyard.model.quantization import read_quantization
from steelyard.model.spec import Layer, ModelSpec

_MOST_STRETCHED = 10_000  # times that a rope scaling may stretch the context; published models have up to 64


def model_from_config(config: Config, name: str) -> ModelSpec:
    """The language model that a config describes; a multimodal one counts its text part only."""
    config.check_numbers()
    config = config.text_part
    family = _family_of(config)
    hidden = config.integer("hidden_size")
    layers = family.layers(config)
    kinds = _kinds(layers)
    drafts = all(kind.blocks > 1 for kind in kinds)  # Nemotron-H has extra layers of two blocks, which are not read
    return ModelSpec(
        name=name,
        family=family.model_type,
        hidden=hidden,
        layers=kinds,
        vocab=config.integer("vocab_size", default=family.vocab_default),
        tied_embeddings=config.flag("tie_word_embeddings", family.tied_default),
        max_position=_max_position(config, family),
        dtype=_dtype(config),
        quantization=read_quantization(config),
        mtp_layers=config.integer("num_nextn_predict_layers", default=0, least=0) if drafts else 0,
        order=_order(layers, kinds) if family.alternates else (),
    )


def _family_of(config: Config) -> Family:
    """By `architectures[0]` where written, else by `model_type`; anything unknown is an error."""
    named = config.get("architectures") if config.has("architectures") else []
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise config.wrong("architectures", named, "a list of names")
    model_type = config.text("model_type", "")
    if named:
        found, known = named[0], {f.architecture: f for f in FAMILIES}
    else:
        found, known = model_type or config.get("model_type"), {f.model_type: f for f in FAMILIES}
    family = known.get(found)
    if family is None:
        supported = ", ".join(f.architecture.partition("For")[0] for f in FAMILIES)
        raise UserError(f"{config.source}: architecture {quoted(found)} is not supported; supported: {supported}")
    return family


def _kinds(layers: list[Layer]) -> tuple[Layer, ...]:
    """Equal layers as one kind with a count, in order of first appearance."""
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(replace(layer, count=count) for layer, count in counts.items())


def _order(layers: list[Layer], kinds: tuple[Layer, ...]) -> tuple[int, ...]:
    """The kind of each layer."""
    numbers = {replace(kind, count=1): number for number, kind in enumerate(kinds)}
    return tuple(numbers[layer] for layer in layers)


def _max_position(config: Config, family: Family) -> int:
    """The longest context; YaRN stretches the original length by its factor, as vLLM counts it."""
    for key in ("rope_scaling", "rope_parameters"):
        scaling = config.section(key)
        if scaling is None:
            continue
        factor = scaling.number("factor", 1, _MOST_STRETCHED) if scaling.has("factor") else None
        if scaling.text("rope_type", scaling.text("type", "")) != "yarn" or factor is None:
            continue
        if scaling.has("original_max_position_embeddings"):
            stretched = int(scaling.integer("original_max_position_embeddings") * factor)
            if stretched > MOST_CONTEXT:
                raise scaling.wrong(
                    "factor", factor, f"a context of at most {MOST_CONTEXT:,} tokens, not {stretched:,}"
                )
            return stretched
    return config.integer(family.position_key, default=family.position_default)


def _dtype(config: Config) -> str:
    """What an engine's `dtype: auto` makes of the file: float32 checkpoints are served in bfloat16."""
    key = "dtype" if config.has("dtype") else "torch_dtype"
    written = config.text(key, "float32")
    if written not in ("bfloat16", "float16", "float32"):
        raise config.wrong(key, written, "bfloat16, float16 or float32")
    return "float16" if written == "float16" else "bfloat16"
