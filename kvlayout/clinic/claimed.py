"""Do the strides lie in the order of axes that a config, or whoever reads it, says? One finding where they can't."""

from __future__ import annotations

from kvlayout.address import AddressMap
from kvlayout.capture.fitting import nests
from kvlayout.clinic.wording import layers_text
from kvlayout.errors import LayoutError
from kvlayout.finding import Finding
from kvlayout.geometry import tensor_geometry
from kvlayout.layout import KVCacheLayout
from kvlayout.region import Region


def lint_claim(address_map: AddressMap) -> list[Finding]:
    """Return an error if a tensor's strides don't nest in the map's layout, but do in another of the six.

    Strides that nest in several layouts contradict none of them, and those that nest in no layout contradict none
    more than another.
    """
    layout, wrong, known = address_map.layout, [], {}
    for region in address_map.regions:
        if 0 in region.geometry.shape or nests(region.geometry, layout):
            continue
        tensor = region.tensor
        key = (region.spec, len(tensor.layers), tensor.layer_stride, tensor.block_stride)
        if key not in known:
            known[key] = _others(region, address_map.config.num_blocks)
        if known[key]:
            wrong.append((region, known[key]))
    if not wrong:
        return []
    region, fits = wrong[0]
    tensor = region.tensor
    first = {name[0] for name in fits}
    are = f"are {first.pop()}-outermost and fit" if len(first) == 1 and layout.name[0] not in first else "fit"
    return [Finding(
        "layout-strides", "error", f"The layout is said to be {layout.name}, but the strides of "
        f"{layers_text(tensor.layers)}, {tensor.layer_stride:,} bytes from layer to layer and "
        f"{tensor.block_stride:,} from block to block, {are} {' and '.join(fits)}.",
        {"layout": layout.name, "fits": fits, "layer_stride": tensor.layer_stride,
         "block_stride": tensor.block_stride, "tensors": len(wrong)}, {"layer": tensor.layers[0]},
        f"Read it as {fits[0]}, or correct the strides")]


def _others(region: Region, num_blocks: int) -> list[str]:
    """The layouts in which the tensor's strides nest."""
    found = []
    for layout in KVCacheLayout:
        try:
            if nests(tensor_geometry(region.spec, num_blocks, layout, region.tensor), layout):
                found.append(layout.name)
        except LayoutError:
            continue  # this layout can't express these pages at all
    return found
