"""What a reader with the wrong map sees: the shares, the owners, and the same from real memory."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.memory.readback import read_as
from kvlayout.readers import WrongReader, compare_readers
from tests.strategies import maps

CASE = kv.FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")  # vllm#42740


def config(layout, layers=3, blocks=6, spec=CASE):
    group = kv.KVCacheGroupSpec([f"layer {i}" for i in range(layers)], spec)
    return kv.get_kv_cache_config_from_groups([group], 0, layout, num_gpu_blocks_override=blocks)


def reader(written, read, **options) -> WrongReader:
    return WrongReader(kv.AddressMap(config(written, **options)), kv.AddressMap(config(read, **options)))


@st.composite
def readers(draw) -> WrongReader:
    writer = draw(maps())
    layout = draw(st.sampled_from(list(kv.KVCacheLayout)))
    interiors = {name: writer.region(name).interior for name in writer.layers if draw(st.booleans())}
    try:
        placed = kv.get_kv_cache_config_from_groups(writer.config.kv_cache_groups, 0, layout,
                                                    num_gpu_blocks_override=writer.config.num_blocks)
        return WrongReader(writer, kv.AddressMap(placed, layout, writer.kernel_block_sizes, interiors))
    except kv.LayoutError:
        assume(False)
        raise


def wrong_bytes(found: WrongReader, layer: int, block: int) -> np.ndarray:
    """Byte by byte: whose byte does the reader take?"""
    _, heads, states, content = found.writer.shape(layer)
    wrong = np.zeros((heads, states, content), dtype=bool)
    name = found.writer.layers[layer]
    for at in np.ndindex(*wrong.shape):
        owner = found.reads(layer, block, *at)
        whose = owner and (owner.layer, owner.block, owner.head, owner.state, owner.byte)
        wrong[at] = whose != (name, block, *at)
    return wrong


@settings(max_examples=60)
@given(readers(), st.data())
def test_shares_are_what_byte_by_byte_lookup_says(found, data):
    layer = data.draw(st.integers(0, len(found.writer.layers) - 1))
    assume(0 not in found.writer.shape(layer) and np.prod(found.writer.shape(layer)[1:]) < 600)
    block = data.draw(st.integers(0, found.writer.shape(layer)[0] - 1))
    wrong = wrong_bytes(found, layer, block)
    assert found.cells(layer, block) == pytest.approx(wrong.mean(axis=2))
    assert found.shares([layer], [block])[0, 0] == pytest.approx(wrong.mean())
    if found.is_right:
        assert not wrong.any()


@settings(max_examples=40)
@given(readers(), st.data())
def test_real_memory_says_the_same(found, data):
    layer = data.draw(st.integers(0, len(found.writer.layers) - 1))
    assume(0 not in found.writer.shape(layer))
    block = data.draw(st.integers(0, found.writer.shape(layer)[0] - 1))
    writer = found.writer
    try:
        cache = kv.allocate_kv_cache(writer.config, "cpu", writer.layout, writer.kernel_block_sizes, interiors={
            name: writer.region(name).interior for name in writer.layers})
    except kv.LayoutError:
        assume(False)  # strides that a wider dtype can't view
        raise
    with cache:
        cache.buffer.random_(-128, 128)
        before = cache.buffer.clone()
        assert read_as(cache, found, layer, block) == pytest.approx(found.cells(layer, block), abs=1e-6)
        assert (cache.buffer == before).all()


def test_the_case_of_vllm_42740():
    """Same page size, so that no size check helps: 2 of 128 cells are read rightly."""
    found = reader("LBNHC", "LBHNC")
    assert found.writer.offset("layer 0", 0, 0, 1) == 4096 and found.reader.offset("layer 0", 0, 0, 1) == 512
    cells = found.cells("layer 1", 3)
    assert np.argwhere(cells == 0).tolist() == [[0, 0], [7, 15]] and (cells[cells > 0] == 1).all()
    assert (found.shares([0, 1, 2], range(6)) == 126 / 128).all()
    owner = found.reads("layer 1", 3, head=0, state=1)
    assert (owner.layer, owner.block, owner.head, owner.state) == ("layer 1", 3, 1, 0)
    assert not found.is_right and reader("LBNHC", "LBNHC").is_right
    with kv.allocate_kv_cache(config("LBNHC"), "cpu") as cache:
        assert (read_as(cache, found, "layer 1", 3) == cells).all()


def test_blocks_that_a_layer_has_not_are_nan_and_pools_of_any_size_cost_the_same():
    found = reader("BLNHC", "LBNHC", blocks=5_000_000, layers=80)
    shares = found.shares(np.arange(80), np.array([0, 1, 4_999_999, 5_000_000]))
    assert np.isnan(shares[:, 3]).all() and shares[0, 0] == 0 and (shares[1:, :3] == 1).mean() > 0.9
    assert found.reads("layer 0", 1).layer == "layer 1"


@pytest.mark.parametrize("layout", kv.KVCacheLayout.__members__)
def test_a_plan_read_in_every_layout(layout):
    plan = kv.make_plan(kv.Selection(model="Qwen/Qwen3-0.6B", layout="LBNHC", num_blocks=40))
    found = compare_readers(plan, layout)
    assert found.is_right == (layout == "LBNHC")
    assert found.reader.layout.name == layout and found.reader.config.num_blocks == 40


def test_kernel_blocks_that_the_reader_cannot_split_are_compared_whole():
    plan = kv.make_plan(kv.Selection(model="Qwen/Qwen3-0.6B", layout="LBNHC", num_blocks=40, block_size=64,
                                     kernel_block_size=16))
    assert compare_readers(plan, "LBHNC").writer.shape(0)[0] == 160
    assert compare_readers(plan, "BLNHC").writer.shape(0)[0] == 40


def test_a_page_that_is_the_whole_pool_is_read_rightly_whatever_its_block_stride():
    """One block: LBNHC and BLNHC put every byte at the same address, their block strides alone differ."""
    found = reader("LBNHC", "BLNHC", blocks=1)
    assert found.writer.strides(0)[0] != found.reader.strides(0)[0]
    assert found.is_right and (found.shares([0, 1, 2], [0]) == 0).all()


@settings(max_examples=40)
@given(readers())
def test_right_means_that_no_page_holds_a_wrong_byte(found):
    layers = range(len(found.writer.layers))
    blocks = max(found.writer.shape(layer)[0] for layer in layers)
    assert found.is_right == bool((np.nan_to_num(found.shares(list(layers), np.arange(blocks))) == 0).all())


@pytest.mark.parametrize("odd", [None, "x", 1.5, float("nan"), -1, 10**30, True, [0], np.array([0, 1])], ids=repr)
def test_odd_coordinates_are_refused_by_name(odd):
    found = reader("LBNHC", "BLNHC")
    with kv.allocate_kv_cache(config("LBNHC"), "cpu") as cache:
        calls = {"block": [lambda: read_as(cache, found, 0, odd), lambda: found.cells(0, odd),
                           lambda: found.reads(0, odd)],
                 "layer": [lambda: read_as(cache, found, odd, 0), lambda: found.cells(odd, 0),
                           lambda: found.reads(odd, 0)],
                 "head": [lambda: found.reads(0, 0, odd)], "byte": [lambda: found.reads(0, 0, 0, 0, odd)],
                 "blocks": [lambda: found.shares([0], [odd])], "layers": [lambda: found.shares([odd], [0])]}
        for argument, made in calls.items():
            for call in made:
                with pytest.raises(kv.LayoutError) as caught:
                    call()
                assert caught.value.argument == argument
        assert not cache.buffer.any()


def test_what_cannot_be_compared_is_refused():
    for call in (lambda: WrongReader(None, None), lambda: compare_readers(None, "LBNHC")):
        with pytest.raises(kv.LayoutError, match="must be a"):
            call()
    with pytest.raises(kv.LayoutError, match="reader"):
        WrongReader(kv.AddressMap(config("LBNHC")), kv.AddressMap(config("LBNHC", blocks=7)))
    with pytest.raises(kv.LayoutError, match="reader"):
        WrongReader(kv.AddressMap(config("LBNHC")), kv.AddressMap(config("LBNHC", layers=2)))
    found = reader("LBNHC", "BLNHC")
    for call in (lambda: found.shares("a", [0]), lambda: found.shares([0], [-1]), lambda: found.shares([0.5], [0]),
                 lambda: found.shares([9], [0]), lambda: compare_readers(3, "LBNHC"),
                 lambda: found.cells("layer 0", 6), lambda: found.cells("no", 0), lambda: found.reads(0, 0, 8)):
        with pytest.raises(kv.LayoutError):
            call()
    other = kv.allocate_kv_cache(config("BLNHC"), "cpu")
    with other as cache, pytest.raises(kv.LayoutError, match="cache"):
        read_as(cache, found, 0, 0)
    with pytest.raises(kv.LayoutError, match="no bytes"):
        read_as(other, found, 0, 0)
