"""Finding a model by catalog name, Hugging Face id, or path. Nothing is fetched."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from steelyard.errors import UserError, did_you_mean
from steelyard.files.finding import is_file, is_folder
from steelyard.files.paths import absolute
from steelyard.model.config import read_json
from steelyard.model.reading import model_from_config
from steelyard.model.size import parameters
from steelyard.model.spec import ModelSpec, MoeFfn

_CATALOG = Path(__file__).parent / "catalog"


def load_model(name: str, *, base_dir: Path | None = None) -> ModelSpec:
    """The model called `name`.

    Looked for in the catalog first (any case; Hugging Face ids work too), then as a config.json or
    a folder that has one, relative to `base_dir` and then to the working directory. Write
    `./NAME` for a folder that shares a catalog name.
    """
    entry = _names().get(name.lower())
    if entry is not None:
        return _catalog_model(entry)
    for base in (base_dir or Path.cwd(), Path.cwd()):
        path = absolute(Path(name) if name.startswith("~") else base / name)
        if is_folder(path):
            return _from_folder(path)
        if is_file(path):
            return model_from_config(read_json(path), _name_of(path))
    if name.startswith((".", "/", "~")) or name.endswith(".json"):
        raise UserError(f"model: {name!r}: no such file or folder")
    raise UserError(
        f"model: {name!r} is neither in the catalog nor a path to a Hugging Face config.json; "
        f"{did_you_mean(name.rsplit('/', 1)[-1], catalog_names())}"
    )


def catalog_names() -> tuple[str, ...]:
    """Catalog names, with numbers in their natural order."""
    return tuple(sorted((path.stem for path in _CATALOG.glob("*.json")), key=_natural))


def catalog_name(name: str) -> str | None:
    """The catalog name of a model, by any of its spellings."""
    return _names().get(name.lower())


def hub_name(name: str) -> str | None:
    """The Hugging Face id of a model of the catalog, by any of its spellings."""
    entry = catalog_name(name)
    return None if entry is None else str(read_json(_CATALOG / f"{entry}.json").data["_name_or_path"])


def model_names() -> dict[str, str]:
    """Every catalog name with a one-line description."""
    return {name: describe(_catalog_model(name)) for name in catalog_names()}


def describe(model: ModelSpec) -> str:
    """Size, shape and context of a model in one line."""
    count = parameters(model)
    size = f"{count.total / 1e9:.1f}B"
    if any(isinstance(layer.ffn, MoeFfn) for layer in model.layers):
        size += f" ({count.active / 1e9:.1f}B active)"
    shape = f"{model.num_layers} layers, "
    recurrent = sum(layers for _, layers in model.recurrents)
    shape += f"{recurrent} of them recurrent, " if recurrent else ""
    for attention, _ in model.attentions[:1]:
        shape += f"{attention.kind} {attention.heads}"
        shape += f"/{attention.kv_heads} heads, " if attention.kind == "gqa" else " heads, "
    stored = model.dtype if model.quantization is None else model.quantization.method
    return f"{size}, {shape}{model.max_position // 1024}k context, {stored}"


@cache
def _catalog_model(name: str) -> ModelSpec:
    return model_from_config(read_json(_CATALOG / f"{name}.json"), name)


@cache
def _names() -> dict[str, str]:
    """Every accepted spelling, lower case, to its catalog name."""
    names: dict[str, str] = {}
    for stem in catalog_names():
        data = read_json(_CATALOG / f"{stem}.json").data
        hub_id = str(data["_name_or_path"]).lower()
        also = [str(alias).lower() for alias in data.get("_aliases", ())]
        for spelling in (stem, hub_id, hub_id.rsplit("/", 1)[-1], *also):
            names.setdefault(spelling, stem)
    return names


def _from_folder(folder: Path) -> ModelSpec:
    path = folder / "config.json"
    if not is_file(path):
        raise UserError(f"model: the folder {folder} has no config.json")
    return model_from_config(read_json(path), _name_of(path))


def _name_of(path: Path) -> str:
    """A config.json goes by its folder's name, any other file by its own."""
    return path.parent.name if path.name == "config.json" else path.stem


def _natural(name: str) -> list[tuple[int, float, str]]:
    """Sort key under which 8b comes before 70b."""
    parts = re.findall(r"\d+(?:\.\d+)?|[^\d]+", name)
    return [(0, float(part), "") if part[0].isdigit() else (1, 0.0, part) for part in parts]
