"""The map that the same groups and blocks would have in another layout."""

from __future__ import annotations

from kvlayout.address import AddressMap
from kvlayout.errors import check_type
from kvlayout.layout import KVCacheLayout, PhysicalLayout, as_layout
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.versions import NEWEST


def relaid(address_map: AddressMap, layout: KVCacheLayout | PhysicalLayout | str, *,
           vllm_version: str = NEWEST) -> AddressMap:
    """Return the map of ``address_map``'s groups, blocks, kernel blocks and interiors, placed in ``layout``.

    The tensors are those that vLLM would place. The map's own layout gives the map itself. Raises LayoutError where
    ``layout`` can't express the pages, or can't split them into the map's kernel blocks.
    """
    check_type("address_map", address_map, AddressMap)
    layout = as_layout(layout)
    if layout == address_map.layout:
        return address_map
    config = address_map.config
    placed = get_kv_cache_config_from_groups(config.kv_cache_groups, 0, layout,
                                             num_gpu_blocks_override=config.num_blocks, vllm_version=vllm_version)
    interiors = {name: address_map.region(name).interior for name in address_map.layers}
    return AddressMap(placed, layout, address_map.kernel_block_sizes, interiors)
