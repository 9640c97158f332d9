"""Models by name, by the path of a config.json, or by the name of a folder that holds one.

`families/*.toml` hold published configurations. A name may carry its organisation (`Qwen/Qwen3-8B`), be that
of a tuned model of the same shape (`also`), or end in how its weights are stored (`-FP8`, `-INT4`, `-AWQ`).
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tlt.traces.catalogue.config_json import FILE, read_config, read_shape, shape_of
from tlt.traces.catalogue.quantised import BY_SUFFIX
from tlt.traces.catalogue.shape import ModelShape
from tltsched.errors import InputError, unknown_name

# As models named so are published: blocks of 128 x 128 share a scale, activations are scaled as they come.
BLOCK_FP8 = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
}  # fmt: skip
FAMILIES = Path(__file__).parent / "families"
OWN = ("none of these has its figures: give the path of its config.json (file or folder), "
       "as published with the weights")  # fmt: skip


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as published: its configuration, the parameters its authors state, and where it is from."""

    name: str
    organisation: str
    published: str  # parameters as its authors round them: 30.5B
    source: str
    config: dict[str, Any]  # config.json, without what no shape follows from
    published_active: str = ""
    also: tuple[str, ...] = ()


class _Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    models: tuple[Published, ...]


@cache
def published() -> dict[str, Published]:
    """Return all models that ship, by name, families in the order of their files."""
    found: dict[str, Published] = {}
    for file in sorted(FAMILIES.glob("*.toml")):
        family = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _Family)
        found |= {model.name: model for model in family.models}
    return found


@cache
def _names() -> dict[str, str]:
    """Return what each model is also called -> its name."""
    return {also: model.name for model in published().values() for also in (model.name, *model.also)}


def canonical(given: str) -> str:
    """Return the name under which a model ships, for any way to write it; what is not known comes back."""
    name = given
    if "/" in name and not Path(name).exists():
        organisation, name = name.split("/", 1)
        known = published().get(_names().get(_stem(name)[0], ""))
        if known is None or known.organisation != organisation:
            return given
    stem, suffix = _stem(name)
    known_name = _names().get(stem)
    return given if known_name is None else known_name + (f"-{suffix}" if suffix else "")


def _stem(name: str) -> tuple[str, str]:
    """Return a name without the suffix that says how its weights are stored, and that suffix."""
    for suffix in BY_SUFFIX:
        stem, end = name[: -len(suffix) - 1], name[-len(suffix) - 1 :]
        if end.lower() == f"-{suffix}".lower() and name not in _names() and stem in _names():
            return stem, suffix
    return name, ""


def model_shape(name: str, field: str = "hardware.model") -> ModelShape:
    """Return the shape of a model by name or by the path of its config.json; raises InputError."""
    stem, suffix = _stem(canonical(name))
    if model := published().get(stem):
        shape = _published_shape(stem)
        if not suffix:
            return shape
        stored = f"{shape.source}; matrices of all layers stored as {suffix}"
        return msgspec.structs.replace(
            shape.quantised(BY_SUFFIX[suffix]), name=f"{model.name}-{suffix}", source=stored
        )
    path = Path(name)
    if path.is_file() or (path / FILE).is_file():
        return read_shape(path, field)
    if path.is_dir():
        raise InputError(field, name, f"a folder that holds a {FILE}", "give the path of that file")
    raise unknown_name(field, name, _alike(name), OWN, things=True)


def _alike(name: str) -> list[str]:
    """Return the models of the family that a name begins with; of no such family: all."""
    family = name.rsplit("/", 1)[-1].partition("-")[0].lower()
    of_it = [each for each in published() if each.lower().startswith(family)] if family else []
    return of_it or list(published())


def model_config(name: str, field: str) -> dict[str, Any]:
    """Return the configuration of a model, by name or by path; raises InputError for `field`."""
    stem, suffix = _stem(canonical(name))
    if stem not in published():
        return read_config(Path(name), field)
    if suffix not in ("", "FP8"):
        fix = "name the model without it, or with -FP8"
        raise InputError(field, name, "weights in bf16, or as the configuration or -FP8 stores them", fix)
    return published()[stem].config | ({"quantization_config": BLOCK_FP8} if suffix else {})


@cache
def _published_shape(name: str) -> ModelShape:
    model = published()[name]
    return shape_of(model.config, name, model.source, "hardware.model")


def is_known(name: str) -> bool:
    """Return whether a model of that name ships."""
    return _stem(canonical(name))[0] in published()
