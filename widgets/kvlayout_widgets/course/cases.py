"""Caches of public reports, small enough to be read: what ``notebooks/data/cases`` holds, one file each.

``python -m kvlayout_widgets.course.cases FOLDER`` writes them again. A file opens in the explorer and on the command
line like any captured config.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from kvlayout import (
    AddressMap,
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    LayoutError,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    make_plan,
)
from kvlayout.capture import parse
from kvlayout.capture.config_json import config_from_dict, config_to_dict
from kvlayout.capture.files import FORMAT, write_json
from kvlayout.captured import CONFIG, captured_selection
from kvlayout.placement import get_kv_cache_config_from_groups


def open_pool(path: str | Path) -> AddressMap:
    """Return the address map of a captured config's JSON, or of a file of text pasted from a log.

    LayoutError naming the file, and the place in it, where it holds no config.
    """
    if Path(path).suffix == ".json":
        return make_plan(captured_selection(path)).address_map
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise LayoutError("path", str(path), f"can't be read as text: {error}", "Give a file's path") from error
    return make_plan(captured_selection(parse(text))).address_map


def numbered(count: int, what: str = "attn") -> tuple[str, ...]:
    """Return layer names as vLLM makes them: "model.layers.0.attn" ..."""
    return tuple(f"model.layers.{index}.{what}" for index in range(count))


def captured(groups: Mapping[tuple[str, ...], KVCacheSpec], num_blocks: int, layout: str, **known: object) -> dict:
    """Return a capture's JSON of {layer names: spec}; ``known``: what else it says, such as kernel_block_sizes."""
    made = [KVCacheGroupSpec(names, spec) for names, spec in groups.items()]
    config = get_kv_cache_config_from_groups(made, 0, layout, num_gpu_blocks_override=num_blocks)
    return {"kvlayout": FORMAT, CONFIG: config_to_dict(config), **known}


def latent(content: int, **fields: object) -> MLAAttentionSpec:
    """Return MLA states of ``content`` bytes, 64 a block."""
    return MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=content, dtype="uint8", **fields)


def attention(block_size: int, heads: int, head_size: int, dtype: str = "bfloat16", **fields: object):
    """Return ordinary attention with K and V of ``head_size`` elements each."""
    return FullAttentionSpec(block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype=dtype, **fields)


def planes(block_size: int, heads: int, head_size: int, num_blocks: int, **known: object) -> dict:
    """Return a capture of K and V apart, as older caches keep them: two planes, each with its own page a block."""
    one = attention(block_size, heads, head_size, head_size_v=0)
    return captured({("K plane", "V plane"): one}, num_blocks, "LBNHC", **known)


def four_mla_layers() -> dict:
    """Pages of 37,376 bytes aligned to 37,440, four layers of a block side by side."""
    return captured({numbered(4): latent(584, alignment=576)}, 100, "BLHNC")


def mla_and_indexer() -> dict:
    """78 layers of 656 bytes a state and 23 of 132, side by side."""
    specs = {**dict.fromkeys(numbered(78), latent(656)), **dict.fromkeys(numbered(23, "indexer"), latent(132))}
    return captured({tuple(specs): UniformTypeKVCacheSpecs(64, specs)}, 3, "BLHNC")


def two_block_sizes() -> dict:
    """Two groups with pages of 65,536 bytes: 16 tokens of 8 heads, and 32 of 4."""
    return captured({numbered(3, "full"): attention(16, 8, 128), numbered(3, "window"): SlidingWindowSpec(
        block_size=32, num_kv_heads=4, head_size=128, dtype="bfloat16", sliding_window=1024)}, 10, "BLNHC")


CASES: dict[str, Callable[[], dict]] = {
    "vllm-17023": lambda: captured({("K cache",): attention(16, 4, 128, head_size_v=0)}, 1_591, "LBNHC"),
    "vllm-28677": lambda: planes(128, 8, 128, 1_818, kernel_block_sizes=[64]),
    "vllm-40991": lambda: captured({("model.layers.0.indexer",): latent(132, cache_role="indexer")}, 8, "LBNHC",
                                   backends={"model.layers.0.indexer": "DEEPSEEK_V32_INDEXER"}),
    "vllm-41257": lambda: captured({numbered(2): attention(16, 1, 46)}, 4, "LBNHC"),
    "vllm-41657": two_block_sizes,
    "vllm-47056": lambda: captured({numbered(2): attention(16, 8, 128)}, 16_384, "LBNHC"),
    "vllm-50276": four_mla_layers,
    "vllm-51031": lambda: captured({numbered(2): attention(128, 1, 128)}, 16, "LBNHC", kernel_block_sizes=[64]),
    "vllm-54877": lambda: captured({numbered(1): attention(128, 1, 128, page_size_padded=81_920)}, 4, "LBNHC",
                                   kernel_block_sizes=[64]),
    "vllm-55431": mla_and_indexer,
    "kvcached-330": lambda: planes(528, 4, 256, 2_699, kernel_block_sizes=[16]),
    "kvcached-398": lambda: captured({numbered(2): attention(16, 8, 128)}, 10, "LBNHC"),
    "xpu-kernels-445": lambda: captured({numbered(1): attention(1_083, 1, 480, "uint8")}, 2_100, "LBNHC"),
}


def pasted_log() -> str:
    """Return what a server's log says of the four MLA layers, as it is pasted."""
    config = config_from_dict(four_mla_layers()[CONFIG])
    return f"(EngineCore pid=1) INFO 03-07 08:18:10 [kv_cache_utils.py:1314] {config}\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, make in CASES.items():
        write_json(make(), folder / f"{name}.json")
    (folder / "vllm-54465.log").write_text(pasted_log())
