"""One element through the view and back: on every layout, and refused where the view says nothing."""

from dataclasses import replace

import pytest

from kvlayout import LayoutError, Selection, allocate_kv_cache, make_plan
from kvlayout.memory.mark import write_and_read_back

LAYER = "model.layers.12.self_attn.attn"


def plan(layout):
    return make_plan(Selection(model="Qwen/Qwen3-0.6B", backend="FLASH_ATTN", layout=layout, num_blocks=4))


@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC", "LHBNC", "BLNHC", "BLHNC", "BHLNC"])
def test_the_mark_is_where_the_map_says_and_nowhere_else(layout):
    with allocate_kv_cache(plan(layout).config, "cpu") as cache:
        for byte in (0, 1, 511):
            cache.buffer.zero_()
            mark = write_and_read_back(cache, LAYER, 3, 5, 7, byte)
            assert mark.offset == cache.address_map.offset(LAYER, 3, 5, 7, byte - byte % 2)
            assert cache.buffer.nonzero().flatten().tolist() == [mark.offset, mark.offset + 1]
            assert write_and_read_back(cache, LAYER, 3, 5, 7, byte).data != mark.data, "a second mark must differ"


def test_a_view_that_lies_is_caught():
    with allocate_kv_cache(plan("LBNHC").config, "cpu") as cache:
        view = cache.views[LAYER]
        block, head, state, element = view.stride()
        cache.views[LAYER] = view.as_strided(view.shape, (block, state, head, element))
        with pytest.raises(LayoutError, match="was written through the view"):
            write_and_read_back(cache, LAYER, 3, 5, 7)


def test_what_has_no_memory_is_refused():
    with allocate_kv_cache(plan("LBNHC").config, "meta") as cache, pytest.raises(LayoutError, match="meta"):
        write_and_read_back(cache, LAYER, 0)
    with pytest.raises(LayoutError, match="freed"):
        write_and_read_back(cache, LAYER, 0)


def test_an_interior_of_its_own_is_refused():
    chosen = replace(plan("LBNHC").selection, backend="CPU_ATTN", layout="LBHNC")
    planned = make_plan(chosen)
    cache = allocate_kv_cache(planned.config, "cpu", interiors=planned.interiors)
    with cache, pytest.raises(LayoutError, match="order of its own"):
        write_and_read_back(cache, LAYER, 0)
