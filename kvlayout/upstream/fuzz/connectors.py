"""KV connectors in questions: vLLM's own by name, several under one MultiConnector, and classes that wish at will.

This module stands in for a connector package of a user's: ``getattr(module, "Wishes NHD")`` is a connector class
that wishes for NHD, and "Wishes nothing" one without a wish.
"""

from __future__ import annotations

import importlib
from functools import cache
from random import Random
from types import SimpleNamespace

from kvlayout.facts.connectors import MULTI_CONNECTOR, connector_names
from kvlayout.upstream.fuzz.draw import chance
from kvlayout.upstream.fuzz.kind import World

PREFIX = "Wishes "
NOTHING = "nothing"


def draw_connector(rng: Random, world: World, wishes: tuple[str, ...]) -> dict | None:
    """Return the transfer config's fields as a question has them, or None for no connector."""
    if chance(rng, 0.35):
        return None
    if chance(rng, 0.5):
        return {"kv_connector": PREFIX + (NOTHING if chance(rng, 0.2) else rng.choice(wishes)),
                "kv_connector_module_path": __name__}
    if chance(rng, 0.03):
        return {"kv_connector": "NoSuchConnector"}
    name = rng.choice(world.connectors or ("NoSuchConnector",))
    if name != MULTI_CONNECTOR:
        return {"kv_connector": name}
    children = [name for name in world.connectors if name != MULTI_CONNECTOR]
    return {"kv_connector": name, "kv_connector_extra_config": {"connectors": [
        {"kv_connector": rng.choice(children), "kv_role": "kv_both"} for _ in range(rng.choice((0, 1, 2, 2, 3)))]}}


def transfer_config(data: dict | None) -> SimpleNamespace | None:
    """Return the question's connector as a transfer config; both sides read the same attributes."""
    defaults = {"kv_connector_module_path": None, "kv_connector_extra_config": {}, "engine_id": "0"}
    return None if data is None else SimpleNamespace(**defaults | data)


@cache
def __getattr__(name: str) -> type:
    if not name.startswith(PREFIX):
        raise AttributeError(name)
    wish = None if name == PREFIX + NOTHING else name.removeprefix(PREFIX)

    class Wishing:
        def __init__(self, vllm_config, role, kv_cache_config):  # vLLM takes no class without the third
            raise NotImplementedError("this connector only wishes")

        @classmethod
        def get_required_kvcache_layout(cls, vllm_config):
            return wish

    return Wishing


def importable_connectors(vllm_version: str) -> tuple[str, ...]:
    """Return vLLM's connectors whose class can be imported here; many need a library of their own."""
    factory = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.factory").KVConnectorFactory
    found = []
    for name in connector_names(vllm_version):
        try:
            factory.get_connector_class(transfer_config({"kv_connector": name}))
        except Exception as error:  # whatever a module does when its library is missing
            print(f"not asked: {name}, whose class doesn't import here ({type(error).__name__})")
            continue
        found.append(name)
    return tuple(found)
