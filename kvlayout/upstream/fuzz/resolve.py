"""Candidates, the resolved layout and its record, for random backends, specs, environments and connectors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace

from kvlayout.resolve import (
    ENVIRONMENT_VARIABLE,
    get_resolved_kv_cache_layout,
    get_supported_kv_cache_layouts,
    record_kv_cache_layout,
    resolve_kv_cache_layout,
)
from kvlayout.spec_io import spec_from_dict
from kvlayout.upstream.fuzz import theirs
from kvlayout.upstream.fuzz.connectors import draw_connector, transfer_config
from kvlayout.upstream.fuzz.draw import LAYOUTS, chance
from kvlayout.upstream.fuzz.draw_layers import draw_layers
from kvlayout.upstream.fuzz.kind import Double, Kind, World

ALIASES = ("NHD", "HND")
ODD = ("lbnhc", "", "NHC", "LBCHN", "nhd")


def ask(rng: Random, world: World) -> dict:
    call = rng.choice(("candidates", "candidates", "resolve", "resolve", "resolve", "resolve", "record"))
    if call == "candidates":
        shared = _some_layouts(rng)
        return {"call": call, "backends": [_declared(rng, shared) for _ in range(rng.choice((0, 1, 2, 2, 3, 4)))]}
    if call == "record":
        return {"call": call, "existing": _name(rng) if chance(rng, 0.6) else None, "name": _name(rng)}
    reported = _some_layouts(rng)
    if chance(rng, 0.05):
        reported = [_name(rng) for _ in reported]
    workers = [list(reported) for _ in range(rng.choice((1, 1, 2, 4)))]
    if chance(rng, 0.05):
        workers[-1] = workers[-1][::-1]
    if chance(rng, 0.02):
        workers = rng.choice(([], [[]]))
    specs = None if chance(rng, 0.05) else rng.sample(found := draw_layers(rng, world)["specs"],
                                                      rng.randint(0, len(found)))
    return {"call": call, "supported_layouts": workers, "specs": specs,
            "pinned": _name(rng) if chance(rng, 0.08) else None,
            "requested": _name(rng) if chance(rng, 0.3) else None,
            "connector": draw_connector(rng, world, (*LAYOUTS, *LAYOUTS, *ALIASES, *ODD)),
            "use_mla": None if chance(rng, 0.05) else chance(rng, 0.3),
            "hisparse": world.vllm_version != "0.29.0" and chance(rng, 0.1)}


def _some_layouts(rng: Random) -> list[str]:
    return rng.sample(LAYOUTS, rng.choice((1, 2, 3, 4, 6, 6, 6)))


def _declared(rng: Random, shared: list[str]) -> list[str] | None:
    """What one backend declares: the shared list, that and more in another order, its own, or None for any."""
    if chance(rng, 0.2):
        return None
    if chance(rng, 0.4):
        return list(shared)
    if chance(rng, 0.6):
        more = list({*shared, *_some_layouts(rng)})
        more.sort(key=LAYOUTS.index)
        rng.shuffle(more)
        return more
    return _some_layouts(rng)


def _name(rng: Random) -> str:
    return rng.choice(LAYOUTS if chance(rng, 0.75) else ALIASES if chance(rng, 0.7) else ODD)


def ours(question: dict, world: World) -> object:
    if question["call"] == "candidates":
        backends = [SimpleNamespace(supported_kv_cache_layouts=lambda declared=declared: declared)
                    for declared in question["backends"]]
        return [layout.name for layout in get_supported_kv_cache_layouts(backends)]
    if question["call"] == "record":
        config = SimpleNamespace(kv_cache_layout=question["existing"])
        record_kv_cache_layout(config, question["name"])
        return {"recorded": config.kv_cache_layout, "read": get_resolved_kv_cache_layout(config).name}
    specs = None if question["specs"] is None else [spec_from_dict(spec) for spec in question["specs"]]
    config = _config(question, SimpleNamespace(kv_cache_layout=question["pinned"]))
    with environment(question["requested"]):
        layout = resolve_kv_cache_layout(config, question["supported_layouts"], specs,
                                             vllm_version=world.vllm_version)
    return {"layout": layout.name, "recorded": config.cache_config.kv_cache_layout}


def their_answer(question: dict, world: World) -> object:
    from vllm.v1.attention.backends import utils

    if question["call"] == "candidates":
        backends = [Double(supported_kv_cache_layouts=lambda declared=declared: declared and tuple(
            map(theirs.layout, declared))) for declared in question["backends"]]
        return [layout.name for layout in utils.get_supported_kv_cache_layouts(backends)]
    if question["call"] == "record":
        config = theirs.cache_config(kv_cache_layout=question["existing"])
        utils.record_kv_cache_layout(config, question["name"])
        return {"recorded": config.kv_cache_layout, "read": config.get_resolved_kv_cache_layout().name}
    specs = None if question["specs"] is None else [theirs.spec(spec) for spec in question["specs"]]
    config = _config(question, theirs.cache_config(kv_cache_layout=question["pinned"]))
    with environment(question["requested"]):
        layout = utils.resolve_kv_cache_layout(config, question["supported_layouts"], specs)
    return {"layout": layout.name, "recorded": config.cache_config.kv_cache_layout}


def _config(question: dict, cache_config: object) -> Double:
    use_mla = question["use_mla"]
    return Double(cache_config=cache_config, kv_transfer_config=transfer_config(question["connector"]),
                  model_config=None if use_mla is None else SimpleNamespace(use_mla=use_mla),
                  attention_config=SimpleNamespace(hisparse_config=object() if question["hisparse"] else None))


@contextmanager
def environment(requested: str | None) -> Iterator[None]:
    """Set VLLM_KV_CACHE_LAYOUT, or unset it, and put back what was there."""
    before = os.environ.pop(ENVIRONMENT_VARIABLE, None)
    if requested is not None:
        os.environ[ENVIRONMENT_VARIABLE] = requested
    try:
        yield
    finally:
        os.environ.pop(ENVIRONMENT_VARIABLE, None)
        if before is not None:
            os.environ[ENVIRONMENT_VARIABLE] = before


KIND = Kind("resolve", "get_supported_kv_cache_layouts, resolve_kv_cache_layout and record_kv_cache_layout",
            "connectors whose class doesn't import here", ask, ours, their_answer)
