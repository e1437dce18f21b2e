"""Which layout vLLM's KV connectors wish for, by connector name and kind of model.

Source: vLLM 0.29.0 to 0.33.0, ``vllm/distributed/kv_transfer/kv_connector`` (``factory.py`` for the names, each
connector's ``get_required_kvcache_layout`` for the wish, ``utils.py`` for how the wish is asked).
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from kvlayout.errors import LayoutConflict, LayoutError
from kvlayout.versions import NEWEST, VLLM_VERSIONS, at_least

MULTI_CONNECTOR = "MultiConnector"
HISPARSE_SINCE = "0.30.0"


@dataclass(frozen=True)
class Wish:
    """What one connector wishes for: ``layout`` by name, or None for no wish.

    ``mla`` False: it has no wish for an MLA model. ``hisparse``: the layout it wishes for instead where HiSparse is
    configured. ``since``: the vLLM release that registered the connector.
    """

    layout: str | None = None
    mla: bool = True
    hisparse: str | None = None
    since: str = VLLM_VERSIONS[0]


CONNECTORS = {
    "ExampleConnector": Wish(),
    "ExampleHiddenStatesConnector": Wish("LBNHC"),
    "LMCacheConnectorV1": Wish(),
    "LMCacheMPConnector": Wish(),
    "NixlConnector": Wish("LBHNC", mla=False),
    "NixlPullConnector": Wish("LBHNC", mla=False),
    "NixlPushConnector": Wish("LBHNC", mla=False),
    "HiSparseConnector": Wish("BLHNC", since=HISPARSE_SINCE),
    "MoRIIOConnector": Wish(),
    "OffloadingConnector": Wish("LBHNC", hisparse="BLHNC"),
    "DecodeBenchConnector": Wish(),
    "MooncakeConnector": Wish("LBHNC", mla=False),
    "MooncakeStoreConnector": Wish(),
    "FlexKVConnectorV1": Wish(),
    "SimpleCPUOffloadConnector": Wish(),
    "HF3FSKVConnector": Wish(),
}


def connector_names(vllm_version: str = NEWEST) -> tuple[str, ...]:
    """Return the connectors that a vLLM release knows by name, MultiConnector last."""
    known = (name for name, wish in CONNECTORS.items() if at_least(vllm_version, wish.since))
    return (*known, MULTI_CONNECTOR)


def connector_layout(
    connector_name: str,
    *,
    uses_mla: bool = False,
    hisparse: bool = False,
    connectors: tuple[str, ...] = (),
    vllm_version: str = NEWEST,
) -> str | None:
    """Return the name of the layout that a connector wishes for, None for no wish.

    ``connectors`` names those under a MultiConnector, which must agree. Raises LayoutError for a name that the
    release doesn't know, LayoutConflict where connectors disagree.
    """
    names = connector_names(vllm_version)
    if connector_name not in names:
        raise LayoutError("kv_connector", connector_name, f"is not a connector of vLLM {vllm_version}",
                          f"Use one of {', '.join(names)}")
    if hisparse and not at_least(vllm_version, HISPARSE_SINCE):
        raise LayoutError("hisparse", hisparse, f"doesn't exist in vLLM {vllm_version}",
                          f"Choose vLLM {HISPARSE_SINCE} or newer")
    if connector_name == MULTI_CONNECTOR:
        return agreed_layout([
            (name, connector_layout(name, uses_mla=uses_mla, hisparse=hisparse, vllm_version=vllm_version))
            for name in connectors])
    wish = CONNECTORS[connector_name]
    if hisparse and wish.hisparse is not None:
        return wish.hisparse
    return wish.layout if wish.mla or not uses_mla else None


def agreed_layout(wishes: list[tuple[str, str | None]]) -> str | None:
    """Return the one layout that (connector name, wish) pairs agree on; None if nobody has a wish.

    Wishes are compared by name, as vLLM does: an alias doesn't agree with its meaning.
    """
    wished = {wish for _, wish in wishes if wish is not None}
    if len(wished) > 1:
        shown = ", ".join(f"{name} wishes {wish}" for name, wish in wishes if wish is not None)
        raise LayoutConflict("connectors", [name for name, _ in wishes], f"must agree on one layout, but {shown}",
                             "Leave out one of them, or set VLLM_KV_CACHE_LAYOUT, which is then asked alone")
    return wished.pop() if wished else None


def wished_layout(vllm_config: object, *, vllm_version: str = NEWEST) -> str | None:
    """Return what the connector of ``vllm_config.kv_transfer_config`` wishes for; None without one.

    Works on vLLM's config and on any object with the same attributes. A connector of your own
    (``kv_connector_module_path``) is imported and asked, as in vLLM; one without the method has no wish.
    The wish is returned as it was said, and may be no layout's name. LayoutError for an unknown connector.
    """
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    if transfer is None:
        return None
    name = getattr(transfer, "kv_connector", None)
    if name is None:
        raise LayoutError("kv_transfer_config.kv_connector", None, "names no connector",
                          "Name one, or leave kv_transfer_config None")
    module_path = getattr(transfer, "kv_connector_module_path", None)
    if module_path is not None:
        ask = getattr(_external_connector(module_path, name), "get_required_kvcache_layout", None)
        return None if ask is None else ask(vllm_config)
    if name == MULTI_CONNECTOR:
        return agreed_layout([
            (child.kv_transfer_config.kv_connector, wished_layout(child, vllm_version=vllm_version))
            for child in _children(vllm_config, transfer)])
    model = getattr(vllm_config, "model_config", SimpleNamespace())
    attention = getattr(vllm_config, "attention_config", None)
    # Where model_config is None, vLLM's NIXL and Mooncake have no wish, as for MLA. A config without it isn't MLA.
    return connector_layout(name, uses_mla=model is None or bool(getattr(model, "use_mla", False)),
                            hisparse=getattr(attention, "hisparse_config", None) is not None,
                            vllm_version=vllm_version)


def _external_connector(module_path: str, name: str) -> object:
    try:
        return getattr(importlib.import_module(module_path), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise LayoutError("kv_connector_module_path", module_path, f"offers no connector {name}: {error}",
                          "Give the dotted path of the module that defines it") from error


def _children(vllm_config: object, transfer: object) -> list[object]:
    """Return one copy of the config for each connector under a MultiConnector."""
    extra = getattr(transfer, "kv_connector_extra_config", None)
    listed = extra.get("connectors") if isinstance(extra, Mapping) else None
    if not isinstance(listed, (list, tuple)) or not all(isinstance(one, Mapping) for one in listed):
        raise LayoutError("kv_connector_extra_config", extra, "must list the MultiConnector's connectors",
                          "Give {'connectors': [{'kv_connector': name, ...}, ...]}")
    children = []
    for one in listed:
        child = copy.copy(vllm_config)
        child.kv_transfer_config = SimpleNamespace(**{"kv_connector": None, **one})
        children.append(child)
    return children
