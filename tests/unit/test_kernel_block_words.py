"""Where a map counts in kernel blocks, every text that names one says so, and which manager block it is a part of."""

import pytest

from kvlayout.captured import captured_selection
from kvlayout.clinic.meeting import meets, slots_meet
from kvlayout.clinic.wording import block_noun, map_block_words
from kvlayout.config import KVCacheGroupSpec
from kvlayout.spec import FullAttentionSpec, SlidingWindowSpec
from kvlayout_widgets import Explorer
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.wording import coordinate_words
from kvlayout_widgets.readout import coordinate_lines, offset_lines
from tests.figure_maps import planned, split

SPEC = {"num_kv_heads": 2, "head_size": 8, "dtype": "bfloat16"}


def overlaid(sizes=(16, 64)):
    """Two groups on the same bytes, blocks of 64 states: layer 0 in kernel blocks of 16, layer 1 whole."""
    groups = [KVCacheGroupSpec(["layers.0"], FullAttentionSpec(64, **SPEC)),
              KVCacheGroupSpec(["layers.1"], SlidingWindowSpec(64, sliding_window=128, **SPEC))]
    return planned(groups, "LBNHC", 6, kernel_block_sizes=list(sizes))


def words(block):
    return f"kernel block {block} (manager block {block // 4}, part {block % 4 + 1} of 4)"


@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC"])
def test_a_coordinate_names_both(layout):
    address_map = split(layout)
    layer = address_map.layers[3]
    for block in (0, 5, 63):
        at = Coordinate(layer, block, 1, 2, 3)
        assert coordinate_words(address_map, at) == (
            f"layer 3 · {words(block)} · head slot 1 · state 2 · byte 3")
        assert coordinate_words(address_map, at, "LB") == f"layer 3 · {words(block)}"
        assert words(block) in coordinate_lines(address_map, at)[0]
        assert words(block) in "\n".join(offset_lines(address_map, at.offset(address_map)))


@pytest.mark.parametrize("sizes", [(64, 64), None], ids=["whole", "unsaid"])
def test_whole_blocks_stay_blocks(sizes):
    address_map = overlaid(sizes=sizes or (None, None))
    assert coordinate_words(address_map, Coordinate("layers.0", 5), "LB") == "layer 0 · block 5"
    assert block_noun(address_map, "layers.0") == "block"


def test_each_group_in_its_own_count():
    address_map = overlaid()
    assert [map_block_words(address_map, layer, 5) for layer in (0, 1)] == [words(5), "block 5"]
    assert [block_noun(address_map, layer) for layer in ("layers.0", "layers.1")] == ["kernel block", "block"]
    here = coordinate_lines(address_map, Coordinate("layers.0", 5))
    assert words(5) in here[0] and "layer 1, block 1. " in here[-1]
    there = coordinate_lines(address_map, Coordinate("layers.1", 1, state=16))
    assert "layer 1 · block 1 · " in there[0] and f"layer 0, {words(5)}." in there[-1]


def test_where_slots_of_two_groups_meet():
    address_map = overlaid()
    found = slots_meet(address_map, 5 * 16, "layers.0", "layers.1")
    assert found.shares
    assert f"Slot 80 is ({words(5)}, row 0) in the first layer and (block 1, row 16) in the second." in found.reason
    assert "Kernel block 5 (manager block 1, part 2 of 4) of layers.0 and block 1 of layers.1 overlay" in found.reason
    other = meets(address_map, ("layers.1", 1), ("layers.0", 1)).reason
    assert f"and {words(1)} of layers.0" not in other and "kernel block 4, 5, 6, 7 of the other layer alone" in other
    # Kernel block 0 and block 0 have equal numbers, but are no equal block ids.
    assert "equal block id" not in meets(address_map, ("layers.0", 0), ("layers.1", 1)).reason
    assert "equal block id" in meets(overlaid(sizes=(64, 64)), ("layers.0", 0), ("layers.1", 1)).reason


def captured(address_map):
    """The same map as a capture: what the explorer and the command line open."""
    return captured_selection({**captured_selection(address_map.config).model,
                               "kernel_block_sizes": list(address_map.kernel_block_sizes)})


def test_the_slots_panel_says_it_of_every_kernel_block_it_names():
    explorer = Explorer(captured(overlaid()))
    explorer.show("Clinic")
    tab = explorer.tabs["Clinic"]
    tab.show("Slots")
    panel = tab.visible
    panel.slot.value = "80"
    text = panel.where.text.value
    assert words(5) in text
    assert "block 5" in text and "block 5" not in text.replace("kernel block 5", "").replace("Kernel block 5", "")
