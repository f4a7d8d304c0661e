"""Models as Hugging Face style folders: reading them, and writing them whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn import Module
from transformers import AutoConfig, AutoModelForCausalLM

from steelyard.errors import UserError
from steelyard.files.finding import is_file
from steelyard.files.jsontext import json_object
from steelyard.files.reading import opened, read_bytes
from steelyard.files.writing import written

CONFIG, MODEL = "config.json", "model.safetensors"
BESIDE = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
"""Files of a model folder that stay as they are when its weights change."""


def read_config(folder: Path) -> dict[str, Any]:
    """A model's config.json."""
    return json_object(folder / CONFIG, "a Hugging Face style folder of a model")


def model_of(config: dict[str, Any]) -> Module:
    """A model of this architecture in float32, with weights drawn at random."""
    make: Callable[..., Module] = AutoModelForCausalLM.from_config
    try:
        model = make(AutoConfig.for_model(**{**config, "dtype": "float32"}), dtype=torch.float32)
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(f"{CONFIG}: transformers cannot make a model of it: {problem}") from None
    return model.train(False)  # no dropout: log-probabilities are to be those of engines


def size_of(config: dict[str, Any]) -> int:
    """Bytes of a model's weights in float32, without allocating them."""
    with torch.device("meta"):
        return sum(tensor.nbytes for tensor in named(model_of(config)).values())


def load_model(folder: Path) -> Module:
    """A model with its weights."""
    model = model_of(read_config(folder))
    load_weights(model, folder)
    return model


def load_weights(model: Module, folder: Path) -> None:
    """Give a model the weights of a folder. Nothing changes unless names and shapes are all right."""
    found = read_tensors(folder / MODEL)
    wanted = named(model)
    if wrong := sorted(set(found) ^ set(wanted)):
        raise UserError(f"{folder / MODEL}: not the tensors of this model; the first difference is {wrong[0]}")
    for name, tensor in wanted.items():
        if tensor.shape != found[name].shape:
            raise UserError(
                f"{folder / MODEL}: {name} is {list(found[name].shape)}, must be {list(tensor.shape)} in this model"
            )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(found[name])


def named(model: Module) -> dict[str, Tensor]:
    """Parameters by name; shared ones once, as in files."""
    return {name: tensor.data for name, tensor in model.named_parameters()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A safetensors file."""
    try:
        with opened(path, "a file of weights"):
            found: dict[str, Tensor] = load_file(path)
            return found
    except SafetensorError as problem:
        raise UserError(f"{path}: cannot be read as safetensors: {problem}") from None


def write_model(
    stage: Path, config: dict[str, Any], tensors: dict[str, Tensor], kind: torch.dtype = torch.float32
) -> None:
    """Write a model into a private folder."""
    name = str(kind).removeprefix("torch.")
    with written(stage / CONFIG) as file:
        file.write(json.dumps({**config, "dtype": name, "torch_dtype": name}, indent=2).encode())
    with written(stage / MODEL) as file:
        file.write(save({name: tensor.detach().to("cpu", kind).contiguous() for name, tensor in tensors.items()}))


def copy_beside(source: Path, stage: Path, names: Iterable[str] = BESIDE) -> None:
    """Copy what belongs to a model beside its weights."""
    for name in names:
        if is_file(source / name):
            with written(stage / name) as file:
                file.write(read_bytes(source / name))
