"""vLLM-Omni's diffusion cache: its backends are not vLLM's, so it pins a layout by rules of its own.

A backend that reads pages by the runtime block stride needs a block-outermost layout, any other one that isn't.
Layout names are exact here: vLLM-Omni knows no aliases. Unlike there, nothing is recorded where an error is raised.
Source: vLLM-Omni 0.30.0, ``vllm_omni/diffusion/diffusion_kv/layout.py``; 0.29 has no ``required_layout`` yet.
"""

from __future__ import annotations

from kvlayout.candidates import backend_name, vllm_layout
from kvlayout.errors import LayoutConflict, LayoutError
from kvlayout.facts.connectors import wished_layout
from kvlayout.layout import KVCacheLayout
from kvlayout.placement import build_kv_cache_tensor

__all__ = ["BLOCK_STRIDE_DIFFUSION_KV_CACHE_LAYOUT", "DEFAULT_DIFFUSION_KV_CACHE_LAYOUT", "adopt_kv_cache_layout",
           "assert_backend_layout_supported", "build_kv_cache_tensor", "get_connector_required_kv_cache_layout",
           "resolve_diffusion_kv_cache_layout"]

DEFAULT_DIFFUSION_KV_CACHE_LAYOUT = KVCacheLayout.LBNHC
BLOCK_STRIDE_DIFFUSION_KV_CACHE_LAYOUT = KVCacheLayout.BLNHC


def resolve_diffusion_kv_cache_layout(
    vllm_config: object,
    *,
    indexes_kv_by_block_stride: bool = False,
    required_layout: KVCacheLayout | str | None = None,
) -> KVCacheLayout:
    """Return the layout of the diffusion cache, and record its name on ``vllm_config.cache_config``.

    A layout already there stays, if it is ``required_layout`` (a connector's) or, without one, meets the backend's
    need. Otherwise the required one, or LBNHC, or BLNHC where ``indexes_kv_by_block_stride``. Without a
    cache_config the choice is only reported. LayoutConflict where need, connector and config contradict each other,
    LayoutError for what is no layout.
    """
    outermost = bool(indexes_kv_by_block_stride)
    need = f"the backend needs is_block_outermost={outermost}"
    if required_layout is not None:
        required_layout = _exact_layout(required_layout, "required_layout")
        if required_layout.is_block_outermost != outermost:
            raise LayoutConflict("required_layout", required_layout.name, f"contradicts the backend: {need}",
                                 "Use another connector or another backend")
    cache_config = getattr(vllm_config, "cache_config", None)
    current = getattr(cache_config, "kv_cache_layout", None)
    if current is not None:
        layout = _exact_layout(current, "cache_config.kv_cache_layout")
        if required_layout is not None and layout is not required_layout:
            raise LayoutConflict("cache_config.kv_cache_layout", layout.name,
                                 f"contradicts the connector, which requires {required_layout.name}",
                                 f"Pin {required_layout.name}, or leave the layout unset")
        if layout.is_block_outermost != outermost:
            raise LayoutConflict("cache_config.kv_cache_layout", layout.name, f"contradicts the backend: {need}",
                                 f"Pin {_default_layout(outermost).name}, or leave the layout unset")
        return layout
    layout = required_layout or _default_layout(outermost)
    if cache_config is not None:
        cache_config.kv_cache_layout = layout.name
    return layout


def get_connector_required_kv_cache_layout(vllm_config: object) -> KVCacheLayout | None:
    """Return the layout that the configured connector wishes for; None without a connector or a wish.

    LayoutError for an unknown connector, or a wish that is no layout's exact name.
    """
    wish = wished_layout(vllm_config)
    return None if wish is None else _exact_layout(wish, "get_required_kvcache_layout")


def adopt_kv_cache_layout(vllm_config: object, kv_cache_config: object) -> KVCacheLayout:
    """Return the layout whose name rides on ``kv_cache_config``, and record it on the worker's own config.

    No name there: the default requirement is resolved, which refuses a block-outermost layout on the config.
    LayoutConflict where the worker's config has another layout, LayoutError for an unknown name.
    """
    name = getattr(kv_cache_config, "kv_cache_layout", None)
    if name is None:
        return resolve_diffusion_kv_cache_layout(vllm_config)
    layout = _exact_layout(name, "kv_cache_config.kv_cache_layout")
    cache_config = getattr(vllm_config, "cache_config", None)
    current = getattr(cache_config, "kv_cache_layout", None)
    if current is not None and current != layout.name:
        raise LayoutConflict("kv_cache_config.kv_cache_layout", layout.name,
                             f"disagrees with the worker's own config, which has {current}",
                             "Let the control plane alone resolve the layout")
    if cache_config is not None:
        cache_config.kv_cache_layout = layout.name
    return layout


def assert_backend_layout_supported(vllm_config: object, attn_backend: object | None) -> None:
    """Raise LayoutConflict where the layout on the config contradicts what ``attn_backend`` needs.

    Nothing is checked without a backend or a config, before the layout is resolved, or where the backend has no
    ``indexes_kv_by_block_stride()``.
    """
    current = getattr(getattr(vllm_config, "cache_config", None), "kv_cache_layout", None)
    declares = getattr(attn_backend, "indexes_kv_by_block_stride", None)
    if current is None or declares is None:
        return
    outermost = bool(declares())
    if _exact_layout(current, "cache_config.kv_cache_layout").is_block_outermost != outermost:
        raise LayoutConflict("cache_config.kv_cache_layout", current,
                             f"contradicts {backend_name(attn_backend)}, which needs is_block_outermost={outermost}",
                             f"Pin {_default_layout(outermost).name}, or leave the layout unset")


def _default_layout(outermost: bool) -> KVCacheLayout:
    return BLOCK_STRIDE_DIFFUSION_KV_CACHE_LAYOUT if outermost else DEFAULT_DIFFUSION_KV_CACHE_LAYOUT


def _exact_layout(layout: object, argument: str) -> KVCacheLayout:
    """Return the layout of a member or an exact name; an alias or anything else is a LayoutError."""
    if isinstance(layout, str) and layout not in KVCacheLayout.__members__:
        raise LayoutError(argument, layout, "is not a layout that vLLM-Omni knows",
                          f"Use one of {', '.join(KVCacheLayout.__members__)}; there are no aliases")
    return vllm_layout(layout, argument)
