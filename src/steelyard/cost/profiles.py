"""Opens profiles of several formats, which are recognised by their content."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from steelyard.cost.bundle import read_bundle
from steelyard.cost.llmservingsim import is_variant, read_meta, read_variant
from steelyard.cost.measured import MeasuredSource
from steelyard.cost.source import CostSource
from steelyard.cost.vidur import is_compute_folder, read_compute_folder
from steelyard.errors import UserError, blaming, quoted
from steelyard.files.finding import files_below, is_folder, is_there
from steelyard.files.paths import absolute
from steelyard.hardware import Gpu, find_gpu
from steelyard.model import Layout, ModelSpec, as_layout

_PRECISION = {"bfloat16": "bf16", "float16": "fp16"}
_WOULD_DO = (
    "a bundle of our own is a .jsonl or .jsonl.gz file; a folder of LLMServingSim has HW/MODEL/VARIANT/tpN/dense.csv "
    "in it, one of Vidur or Frontier DEVICE/MODEL/attention.csv with mlp.csv or linear_op.csv"
)

NamesOf = Callable[[Path], tuple[set[str], str]]  # names of the GPU and of the model of a profile folder


def open_profile(path: Path, gpu: Gpu, model: ModelSpec, layout: int | Layout) -> CostSource:
    """The profile at a path, for a model and layout on one kind of GPU.

    A file is a bundle of our own. A folder is a profile of LLMServingSim, Vidur or Frontier, or contains several of
    them, of which the one for this GPU and model is used.
    """
    if not is_there(path):
        raise UserError(f"{path}: no such file or folder; {_WOULD_DO}")
    if not is_folder(path):
        return _bundle(path, gpu)
    variants = _folders(path, "tp*/dense.csv", is_variant)
    if variants:
        return read_variant(_of_precision(_chosen(variants, path, gpu, model, _by_meta), model), layout)
    folders = _folders(path, "attention*.csv", is_compute_folder)
    if folders:  # a folder given directly may have any name: its rows must fit the model
        folder = path if folders == [path] else _only(_chosen(folders, path, gpu, model, _by_path), path)
        return read_compute_folder(folder, model, as_layout(layout).tp)
    raise UserError(f"{path}: holds no profile; {_WOULD_DO}")


def _bundle(path: Path, gpu: Gpu) -> MeasuredSource:
    try:
        bundle = read_bundle(path)
    except UserError as error:
        raise UserError(f"{error}; {_WOULD_DO}") from None
    with blaming(f"{path}:1: about.gpu"):
        if find_gpu(bundle.about["gpu"]).name != gpu.name:
            raise UserError(f"a profile of {quoted(bundle.about['gpu'])}, but the GPU is {gpu.name}")
    if not bundle.families:
        raise UserError(f"{path}: holds no points, only a description; {_WOULD_DO}")
    source = MeasuredSource(gpu, bundle)
    for family, lack in source.lacks():
        raise UserError(f"{path}: {family}: {lack}; measure more (`steelyard profile`), or leave out all of its points")
    return source


def _folders(root: Path, marker: str, fits: Callable[[Path], bool]) -> list[Path]:
    """Profile folders at or below a root, recognised by a marker file."""
    depth = marker.count("/")
    files = files_below(root, marker, "the folder of the profile")
    return sorted(folder for folder in {file.parents[depth] for file in files} if fits(folder))


def _by_meta(folder: Path) -> tuple[set[str], str]:
    meta = read_meta(folder)
    return {str(meta.get("gpu", "")), str(meta.get("hardware", ""))}, str(meta.get("model", ""))


def _by_path(folder: Path) -> tuple[set[str], str]:
    """GPU and model from the path, since the files do not name them; a model's name may include its maker's."""
    parts = absolute(folder).parts
    return set(parts[-3:-1]), parts[-1]


def _chosen(folders: list[Path], root: Path, gpu: Gpu, model: ModelSpec, names_of: NamesOf) -> list[Path]:
    """The folders of this GPU and model; a folder given directly may be of an unknown GPU."""
    of_gpu = [each for each in folders if _is_of(names_of(each)[0], gpu, otherwise=folders == [root])]
    if not of_gpu:
        raise UserError(f"{root}: no profile of {gpu.full_name} in it; {_listed(folders, root)}")
    exact = [each for each in of_gpu if _plain(names_of(each)[1]) == _plain(model.name)]
    alike = exact or [each for each in of_gpu if _alike(names_of(each)[1], model.name)]
    if not alike:
        raise UserError(f"{root}: no profile of {model.name} on {gpu.name} in it; {_listed(of_gpu, root)}")
    return alike


def _of_precision(folders: list[Path], model: ModelSpec) -> Path:
    """The variant profiled in the model's precision, or the only one."""
    wanted = _PRECISION[model.dtype] if model.quantization is None else model.quantization.method
    return _only([each for each in folders if each.name == wanted] or folders, folders[0].parent)


def _only(folders: list[Path], root: Path) -> Path:
    if len(folders) > 1:
        raise UserError(f"{root}: several profiles would do: {', '.join(map(str, folders))}; name one of them")
    return folders[0]


def _is_of(names: Iterable[str], gpu: Gpu, *, otherwise: bool) -> bool:
    known = []
    for name in names:
        try:
            known.append(find_gpu(name).name)
        except UserError:
            continue  # a folder's name may be anything
    return gpu.name in known if known else otherwise


def _alike(theirs: str, ours: str) -> bool:
    """Whether two names mean one model: hubs add the maker before it and the fine-tune after it."""
    return bool(theirs) and (_plain(ours) in _plain(theirs) or _plain(theirs) in _plain(ours))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().rsplit("/", 1)[-1])


def _listed(folders: list[Path], root: Path) -> str:
    shown = ", ".join(str(each.relative_to(root)) for each in folders[:8])
    return f"found {shown}{' and more' if len(folders) > 8 else ''}"
