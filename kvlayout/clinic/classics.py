"""The right offset formula, and wrong ones that public reports show, ready to be compared with a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvlayout.address import AddressMap
from kvlayout.errors import check_type

_PAGE = "layer_offset + block * block_stride"
_CELL = "head * head_stride + token * state_stride"
_PLAIN = f"{_PAGE} + {_CELL} + element * element_stride"
_FIELDS = f"{_PAGE} + head * field_head_stride + token * field_state_stride + field_offset"
_INSIDE_RIGHT = f"{_PAGE} + inner_offset"


@dataclass(frozen=True)
class Classic:
    """A mistake as a formula.

    Attributes:
        title: in a few words
        formula, length: texts for ``compare_formula``; ``length`` None is one element
        says: what the mistake is, and the public report that shows it
        right_where: the caches on which it happens to be right
    """

    title: str
    formula: str
    length: str | None
    says: str
    right_where: str


CLASSICS: Mapping[str, Classic] = MappingProxyType({
    "flat-slot": Classic(
        "Flat slot times row", "layer_offset + slot * num_heads * content_bytes + head * content_bytes "
        "+ element * element_stride", None,
        "Takes a layer for one array of rows [slot, head], ignoring the block stride (vllm#54465).",
        "blocks of a layer that follow each other without padding, tokens outside heads, as in LBNHC"),
    "nhd-as-hnd": Classic(
        "NHD read as HND", f"{_PAGE} + (head * num_states + token) * content_bytes + element * element_stride", None,
        "Takes heads outside tokens where tokens are outside heads; sizes agree, so no check helps (vllm#42740).",
        "layouts with H outside N in one page; pages of one head or one token"),
    "hnd-as-nhd": Classic(
        "HND read as NHD", f"{_PAGE} + (token * num_heads + head) * content_bytes + element * element_stride", None,
        "Takes tokens outside heads where heads are outside tokens (vllm#42740, the other way round).",
        "layouts with N outside H in one page; pages of one head or one token"),
    "block-size-axis": Classic(
        "Block size from the wrong axis", "layer_offset + slot // num_heads * block_stride + head * head_stride "
        "+ slot % num_heads * state_stride + element * element_stride", None,
        "Reads the block size off the head axis of the shape, so slots fall into other blocks (vllm#47056).",
        "pages with as many heads as tokens"),
    "manager-id-kernel-stride": Classic(
        "Manager's block id, kernel block's stride",
        "layer_offset + manager_block * block_stride + inner_offset", None,
        "Multiplies the manager's block id with the kernel block's stride (vllm#28677).",
        "caches whose blocks aren't split into kernel blocks"),
    "kernel-id-manager-stride": Classic(
        "Kernel block's id, manager's block stride",
        "layer_offset + block * manager_block_stride + inner_offset", None,
        "Multiplies the kernel block's id with the manager's block stride (kvcached#330).",
        "caches whose blocks aren't split into kernel blocks"),
    "block-stride-length": Classic(
        "Block stride for the page's length", _PAGE, "block_stride",
        "Clears or copies a page over a whole block stride, into other layers' pages (vllm#50276, vllm#52709).",
        "layers whose blocks lie next to each other, as in LBNHC"),
    "int32-bytes": Classic(
        "int32 wraps, in bytes", "layer_offset + int32(block * block_stride) + inner_offset", None,
        "Multiplies block id and block stride, in bytes, in 32 bits (xpu-kernels#445).",
        "layers whose last block begins below 2^31 bytes"),
    "int32-elements": Classic(
        "int32 wraps, in elements", "layer_offset + int32(block * (block_stride // element_size)) * element_size "
        "+ inner_offset", None,
        "Multiplies block id and block stride, in elements, in 32 bits (as xpu-kernels#445, with wider elements).",
        "layers whose last block begins below 2^31 elements"),
    "kv-split-in-block": Classic(
        "K and V halves of each block", f"{_PAGE} + element // half_elements * (page_content_bytes // 2) "
        f"+ ({_CELL}) // 2 + element % half_elements * element_stride", None,
        "Reads a block as [2, ...], all K before all V, where K and V are packed side by side in each state (shapes "
        "with an axis of 2, as before vLLM 0.29).",
        "pages of one state in one head slot"),
    "kv-split-planes": Classic(
        "K and V in two planes", "layer_offset + element // half_elements * (num_blocks * block_stride // 2) "
        f"+ (block * block_stride + {_CELL}) // 2 + element % half_elements * element_stride", None,
        "Reads a layer as [2, blocks, ...], a K plane and a V plane, where K and V are packed side by side in each "
        "state (shapes as in vllm#17023 and kvcached#330).",
        "layers of a single state in a single block and head slot"),
    "scales-beside": Classic(
        "Scales beside each state", _PLAIN, None,
        "Reads a state's fields side by side, where the page keeps all scales at its tail (vllm#40991).",
        "pages whose states keep their fields side by side"),
    "scales-at-tail": Classic(
        "Scales at the page's tail", f"{_PAGE} + head * head_stride + num_states * field_begin + token * field_bytes "
        "+ element * element_size - field_begin", None,
        "Reads each field as an array of its own, the scales last, where the states keep their fields side by side "
        "(vllm#40991, the other way round).",
        "pages with all scales at the tail, one head slot, and states of a single field"),
})


def right_formula(address_map: AddressMap, layer: str | int | None = None) -> str:
    """Return a text that ``compare_formula`` finds right: for one layer, or for all of the map.

    By plain strides where each state's fields lie side by side, by the fields' own strides where a page keeps them
    apart; ``inner_offset`` where neither serves.
    """
    check_type("address_map", address_map, AddressMap)
    regions = address_map.regions if layer is None else [address_map.region(layer)]
    scopes = {region.interior.scope for region in regions}
    return _PLAIN if scopes <= {"state"} else _FIELDS if scopes <= {"state", "page"} else _INSIDE_RIGHT
