"""vLLM-Omni's functions for its diffusion cache beside ours, on the plan's layers and layout.

Source: vLLM-Omni 0.29.0 and 0.30.0, ``vllm_omni/diffusion/diffusion_kv/layout.py``.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

from kvlayout import diffusion
from kvlayout.plan import Plan
from kvlayout.upstream.convert import to_vllm
from kvlayout.upstream.verdict import Check, compare

REFUSED = "refused"


def check(plan: Plan) -> Check:
    """Compare pin, adoption, assertion and tensors that both give for the plan's layout and tensors."""
    if importlib.util.find_spec("vllm_omni") is None:
        return Check("omni", None, reason="vLLM-Omni isn't installed")
    try:
        theirs = importlib.import_module("vllm_omni.diffusion.diffusion_kv.layout")
    except Exception as error:  # its package patches vLLM as it is imported, which may fail in any way
        return Check("omni", None, reason=f"vLLM-Omni can't be imported: {type(error).__name__}: {error}")
    # A connector's layout came with 0.30.
    asks_connector = "required_layout" in inspect.signature(theirs.resolve_diffusion_kv_cache_layout).parameters
    return compare("omni", _answers(plan, diffusion, lambda value: value, asks_connector),
                   _answers(plan, theirs, to_vllm, asks_connector))


def _answers(plan: Plan, module: ModuleType, own: Callable, asks_connector: bool) -> dict:
    """Return what one side's functions give; ``own`` turns our objects into that side's."""
    name, found = plan.layout.name, {}
    for need in (False, True):
        for pinned in (None, name):
            for required in (None, name) if asks_connector else (None,):
                extra = {} if required is None else {"required_layout": required}
                found[f"resolve(needs {need}, pinned {pinned}, required {required})"] = _layout(
                    pinned, lambda config, need=need, extra=extra: module.resolve_diffusion_kv_cache_layout(
                        config, indexes_kv_by_block_stride=need, **extra))
        backend = SimpleNamespace(indexes_kv_by_block_stride=lambda need=need: need)
        found[f"assert(needs {need})"] = _layout(
            name, lambda config, backend=backend: module.assert_backend_layout_supported(config, backend))
    for pinned in (None, name):
        found[f"adopt(pinned {pinned})"] = _layout(pinned, lambda config: module.adopt_kv_cache_layout(
            config, SimpleNamespace(kv_cache_layout=name)))
    for index, region in enumerate(plan.address_map.regions):
        found[f"tensors[{index}]"] = _tensor(lambda region=region: module.build_kv_cache_tensor(
            own(region.spec), plan.config.num_blocks, list(region.tensor.layers), layout=own(plan.layout),
            offset=region.tensor.offset))
    return found


def _layout(pinned: str | None, ask: Callable) -> object:
    """Return the name that is given and the one that is on the config afterwards."""
    config = SimpleNamespace(cache_config=SimpleNamespace(kv_cache_layout=pinned))
    try:
        answer = ask(config)
    except (ValueError, TypeError, KeyError, AssertionError):
        return REFUSED
    return {"layout": getattr(answer, "name", None), "recorded": config.cache_config.kv_cache_layout}


def _tensor(ask: Callable) -> object:
    try:
        tensor = ask()
    except (ValueError, AssertionError):
        return REFUSED
    return {"size": tensor.size, "layers": list(tensor.layers), "layer_stride": tensor.layer_stride,
            "block_stride": tensor.block_stride, "offset": tensor.offset}
