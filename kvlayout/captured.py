"""A captured config as a selection: it was planned elsewhere, so nothing is resolved, grouped or placed anew.

Such a selection's ``model`` is the dict of a capture's JSON: ``{"kvlayout": 1, "kv_cache_config": {...}}``, with what
else is known of it (``kernel_block_sizes`` in tokens, one a group; ``backends`` {layer: name}; ``vllm_version``;
``machine``, a Machine's fields; ``note``, what a person must know of where it came from).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from kvlayout.capture.config_json import config_from_dict, config_to_dict
from kvlayout.capture.files import FORMAT, check_format, read_json
from kvlayout.capture.fitting import likeliest_first, place_alike
from kvlayout.capture.objects import as_config
from kvlayout.capture.pasted import parse_first
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec
from kvlayout.errors import LayoutError, check_int, errors_in
from kvlayout.layout import KVCacheLayout, PhysicalLayout, as_layout
from kvlayout.selection import Selection
from kvlayout.spec import AttentionSpec, EncoderOnlyAttentionSpec
from kvlayout.steps import Resolution, Step
from kvlayout.versions import VLLM_VERSIONS

CONFIG = "kv_cache_config"
# The choices that a captured config leaves open.
OPEN = ("model", "backend", "layout", "kernel_block_size", "device", "machine", "vllm_version")


def is_captured(model: object) -> bool:
    """Whether a selection's ``model`` is a captured config."""
    return isinstance(model, Mapping) and CONFIG in model


def captured_selection(subject: object, **choices: object) -> Selection:
    """Return the selection that shows ``subject`` as it is.

    ``subject``: a KVCacheConfig (ours or vLLM's), anything with a ``to_dict`` that gives a capture's JSON (a rank's
    dump), that dict, or the path of such a file or of a pasted log. LayoutError for anything else.
    """
    if isinstance(subject, str | Path):
        subject = _read_file(subject)
    elif hasattr(subject, "to_dict"):
        subject = subject.to_dict()
    elif not isinstance(subject, Mapping):
        subject = {CONFIG: config_to_dict(as_config(subject))}
    if not is_captured(subject):
        raise LayoutError("subject", list(subject) if isinstance(subject, Mapping) else subject, "is not a capture",
                          f"Give a KVCacheConfig, or JSON with the key {CONFIG!r}")
    model = json.loads(json.dumps({"kvlayout": FORMAT, **subject}))
    if model.get("vllm_version") in VLLM_VERSIONS:
        choices = {"vllm_version": model["vllm_version"], **choices}
    if "machine" in model:
        choices = {"machine": model["machine"], **choices}
    return Selection.from_dict({"model": model, **choices})


def _read_file(path: str | Path) -> object:
    """The decoded JSON of a file, or the capture of a log that prints a config."""
    try:
        text = Path(path).read_text("utf-8", "replace")
    except (OSError, ValueError):
        text = "{"  # read_json says why it can't be read
    if text.lstrip().startswith(("{", "[")):
        return read_json(path)
    with errors_in(f"{path}:"):
        return capture_of_text(text)


def capture_of_text(text: str) -> dict[str, object]:
    """Return a capture's JSON for the config that a pasted log prints; its note says where that is one of several.

    Raises LayoutError as :func:`kvlayout.capture.parse`.
    """
    config, note = parse_first(text)
    return {"kvlayout": FORMAT, CONFIG: config_to_dict(config), **({"note": note} if note else {})}


def capture_note(model: object) -> str:
    """Return what a person must know of a selection's ``model``; "" for what is no capture or has no note."""
    note = model.get("note") if is_captured(model) else None
    return note if isinstance(note, str) else ""


def settled(choices: Mapping[str, object]) -> dict[str, object]:
    """Return a Selection's arguments with what a captured config doesn't leave open at its default."""
    return {**choices, **{f.name: f.default for f in fields(Selection) if f.name in choices and f.name not in OPEN}}


@dataclass(frozen=True)
class Capture:
    """What a captured selection says.

    Attributes:
        config: with its layout's name; without one where that is a guess, so that it stays one for whoever reads it
        resolution: why that layout
        backend_names: {layer: the backend that reads and writes it}, where known
        kernel_block_sizes: tokens, one a group
    """

    config: KVCacheConfig
    resolution: Resolution
    backend_names: dict[str, str]
    kernel_block_sizes: list[int]


def read_capture(selection: Selection) -> Capture:
    """Return what ``selection``'s captured config says; LayoutError for a choice that it doesn't leave open."""
    _check_choices(selection)
    check_format({"kvlayout": FORMAT, **selection.model})
    with errors_in(CONFIG):
        config = config_from_dict(selection.model[CONFIG])
    resolution = _layout(config, selection.layout)
    if not resolution.is_guess:
        config = replace(config, kv_cache_layout=resolution.layout.name)
    return Capture(config, resolution, _backends(selection, config), _kernel_block_sizes(selection, config))


def _check_choices(selection: Selection) -> None:
    """Raise LayoutError for a choice that a captured config doesn't leave open."""
    for one in fields(Selection):
        value = getattr(selection, one.name)
        if one.name not in OPEN and value != one.default:
            raise LayoutError(one.name, value, "can't be chosen: the config was captured as it is",
                              "Leave it out, or choose a model instead")


def _layout(config: KVCacheConfig, chosen: str | None) -> Resolution:
    """Return the config's layout: its own, or else ``chosen``, or else the likeliest that its strides fit.

    LayoutError where ``chosen`` contradicts its own, and where none is named and none fits.
    """
    if config.kv_cache_layout is not None:
        layout = as_layout(config.kv_cache_layout, "kv_cache_layout")
        if chosen is not None and as_layout(chosen) != layout:
            raise LayoutError("layout", chosen, f"contradicts the captured config, whose layout is {layout.name}",
                              "Leave it out, or take kv_cache_layout out of the config")
        return _resolution(layout, f"The captured config says {config.kv_cache_layout}.")
    if chosen is not None:
        layout = as_layout(chosen)
        return _resolution(layout, f"The captured config names no layout; {layout.name} is taken as asked.")
    fits = likeliest_first(config)
    if not fits:
        raise LayoutError("kv_cache_layout", None, "isn't in the captured config, and its strides fit no layout",
                          "Force a layout to see it under that one")
    names = " and ".join(layout.name for layout in fits)
    said = f"The captured config names no layout; its strides fit {names}"
    if len(fits) == 1:
        return _resolution(fits[0], f"{said}.")
    if place_alike(config, fits):
        return _resolution(fits[0], f"{said}, which put every byte at the same place.")
    return _resolution(fits[0], f"{said} and can't tell them apart; {fits[0].name} is shown, a guess.",
                       [layout.name for layout in fits[1:]])


def _resolution(layout: KVCacheLayout | PhysicalLayout, sentence: str, others: Sequence[str] = ()) -> Resolution:
    step = Step("captured", tuple(KVCacheLayout.__members__), (layout.name,), {}, sentence)
    return Resolution(layout, (step,), tuple(others))


def _kernel_block_sizes(selection: Selection, config: KVCacheConfig) -> list[int]:
    """Return tokens a kernel block, one a group: the chosen one for attention, or the capture's, or whole blocks.

    vLLM lists no size for encoder-only groups, so a capture has none for them either.
    """
    groups = config.kv_cache_groups
    split = [index for index, group in enumerate(groups) if not _is(group, EncoderOnlyAttentionSpec)]
    given = selection.model.get("kernel_block_sizes")
    if given is None:
        given = [groups[index].kv_cache_spec.block_size for index in split]
    if not isinstance(given, list) or len(given) != len(split):
        raise LayoutError("kernel_block_sizes", given, f"must be one size for each of {len(split)} groups",
                          "Leave it out for whole blocks")
    sizes = [group.kv_cache_spec.block_size for group in groups]
    for index, size in zip(split, given):
        chosen = selection.kernel_block_size if _is(groups[index], AttentionSpec) else None
        sizes[index] = check_int("kernel_block_sizes", size, minimum=1) if chosen is None else chosen
    return sizes


def _is(group: KVCacheGroupSpec, kind: type) -> bool:
    return any(isinstance(spec, kind) for spec in group.layer_specs.values())


def _backends(selection: Selection, config: KVCacheConfig) -> dict[str, str]:
    """Return {layer: backend's name} where it is known: the chosen one for attention, else the capture's."""
    named = selection.model.get("backends") or {}
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise LayoutError("backends", named, "must map layer names to backends' names")
    found = {name: one for name, one in named.items() if name in config.layer_specs}
    if selection.backend is not None:
        found |= {name: selection.backend for name, spec in config.layer_specs.items()
                  if isinstance(spec, AttentionSpec)}
    return found
