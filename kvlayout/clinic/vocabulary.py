"""One layout in the words of vLLM (new and older), FlashInfer, LMCache and NIXL, and as plain strides."""

from __future__ import annotations

from kvlayout.layout import AXES, KVCacheLayout, PhysicalLayout, as_layout

# Where each vocabulary's words were read.
SOURCES = {
    "vLLM": "vLLM 0.29.0 to 0.33.0, vllm/v1/kv_cache_layout.py (KVCacheLayout)",
    "NHD/HND": "vLLM 0.29.0 to 0.33.0, aliases of VLLM_KV_CACHE_LAYOUT and of cache_config: two layouts have one",
    "FlashInfer": "flashinfer.page, kv_layout: the order of one page's tokens (N), heads (H) and elements (D) in a "
                  "layer; K and V may be views with strides of their own",
    "LMCache": "LMCache, EngineKVFormat and lmcache/v1/gpu_connector/kv_format/specs: NL layers, NB blocks, NH "
               "heads, BS block size, CS content of K and V together; _X_ is a list of tensors",
    "NIXL": "NIXL knows no layouts, only lists of descriptors (address, length, device); here the fewest that one "
            "block of all layers takes without padding, as the layout orders them",
    "strides": "computed: the axes from the largest stride to the smallest",
}

_FLASHINFER = {"LBNHC": "NHD", "BLNHC": "NHD", "LBHNC": "HND", "BLHNC": "HND", "BHLNC": "HND"}
_LMCACHE = {"LBHNC": "NL_X_NB_NH_BS_CS", "LBNHC": "NL_X_NB_BS_NH_CS", "BLHNC": "NB_NL_NH_BS_CS",
            "BLNHC": "NB_NL_BS_NH_CS"}
_OLDER = {"LBNHC": "NHD", "LBHNC": "HND"}
_AXIS_WORDS = {"L": "layer", "B": "block", "H": "head", "N": "token", "C": "byte"}


def names(layout: KVCacheLayout | PhysicalLayout | str) -> dict[str, str | None]:
    """Return {vocabulary: its word for ``layout``}, None where that vocabulary has no word.

    ``SOURCES`` says where each vocabulary's words come from. The words are those of attention with heads: with one
    head (MLA) NHD and HND are the same bytes, and LMCache has a format of its own (NL_X_NB_BS_HS).
    Raises LayoutError for what is no layout.
    """
    layout = as_layout(layout)
    name = layout.name
    return {
        "vLLM": name if name in KVCacheLayout.__members__ else None,
        "NHD/HND": _OLDER.get(name),
        "FlashInfer": _FLASHINFER.get(name),
        "LMCache": _LMCACHE.get(name),
        "NIXL": _descriptors(name),
        "strides": ", then ".join(f"the next {_AXIS_WORDS[axis]}" for axis in reversed(name)) + " (nearest first)",
    }


def no_word(layout: KVCacheLayout | PhysicalLayout | str) -> list[str]:
    """Return the vocabularies that have no word for ``layout``."""
    return [vocabulary for vocabulary, word in names(layout).items() if word is None]


def _descriptors(name: str) -> str:
    """What one block splits into: one piece for each index of the axes that B doesn't hold together."""
    outside = [_AXIS_WORDS[axis] for axis in AXES if axis != "B" and name.index(axis) < name.index("B")]
    return f"one descriptor for each {' and '.join(['block', *outside])}"
