"""Configs that contradict themselves become findings with their numbers; strangers one clear error."""

import math
import time
from dataclasses import replace

import pytest

import kvlayout as kv
from kvlayout.clinic.blocks import BlockSplit, uneven_steps
from kvlayout.clinic.bounds import block_span
from kvlayout.clinic.limits import unwrapped, wrapped
from kvlayout.clinic.linting import lint
from kvlayout.clinic.ranks import compare_ranks, count_dependent
from kvlayout.spec_io import spec_from_dict

LAYERS = [f"model.layers.{i}.self_attn.attn" for i in range(4)]


def tiny(layout: str = "LBNHC", num_blocks: int = 8, **fields) -> kv.KVCacheConfig:
    return kv.make_plan(kv.Selection(model="llama-tiny", layout=layout, num_blocks=num_blocks, **fields)).config


def with_tensor(config: kv.KVCacheConfig, **fields) -> kv.KVCacheConfig:
    return replace(config, kv_cache_tensors=(replace(config.kv_cache_tensors[0], **fields),))


def errors(findings: list) -> dict:
    return {one.rule: one for one in findings if one.is_error}


@pytest.mark.parametrize("name", [*kv.presets()])
def test_a_correct_plan_gives_no_error(name):
    for requested in (None, *kv.KVCacheLayout.__members__):
        try:
            plan = kv.make_plan(kv.Selection(model=name, requested=requested, num_blocks=50_000))
        except kv.LayoutError:
            continue
        assert errors(lint(plan)) == {} == errors(lint(plan.config)) == errors(lint(plan.address_map))


def test_a_tensor_past_its_size():
    config = tiny()
    short = config.size_bytes - 100
    found = errors(lint(with_tensor(config, size=short)))
    assert found["view-outside"].numbers["past_end_bytes"] == 100
    assert found["view-outside"].coordinate == {"layer": kv.AddressMap(config).layers[-1], "block": 7}
    assert found["block-bytes"].numbers["bytes_per_block"] < found["block-bytes"].numbers["largest_group_bytes"]


def test_strides_shorter_than_a_page():
    config = tiny()
    page = config.kv_cache_tensors[0].block_stride
    found = errors(lint(with_tensor(config, block_stride=page - 64)))
    assert found["self-overlap"].numbers["page_bytes"] == page
    assert found["self-overlap"].numbers["strides"][1] == page - 64


def test_a_block_stride_of_nothing_is_refused_with_its_numbers():
    found = errors(lint(with_tensor(tiny(), block_stride=0)))
    assert "block_stride=0" in found["refused"].numbers["value"]


def test_layers_that_groups_and_tensors_disagree_on():
    config = tiny()
    tensor = config.kv_cache_tensors[0]
    found = errors(lint(with_tensor(config, layers=tensor.layers[:-1])))
    assert found["layer-without-tensor"].numbers["layers"] == [tensor.layers[-1]]
    found = errors(lint(with_tensor(config, layers=(*tensor.layers, "stranger"))))
    assert found["layer-without-group"].coordinate == {"layer": "stranger"}
    found = errors(lint(with_tensor(config, layers=(*tensor.layers, tensor.layers[0]))))
    assert found["layer-twice"].numbers["count"] == 1


def test_sizes_that_differ():
    config = kv.make_plan(kv.Selection(model="gemma3-hybrid-tiny", layout="BLNHC", num_blocks=5)).config
    first, *rest = config.kv_cache_tensors
    found = errors(lint(replace(config, kv_cache_tensors=(replace(first, size=first.size + 7), *rest))))
    assert sorted(found["sizes-differ"].numbers["sizes"]) == [first.size, first.size + 7]


def test_groups_out_of_step_may_be_lent_the_same_bytes():
    config = kv.make_plan(kv.Selection(model="gemma3-hybrid-tiny", layout="BLNHC", num_blocks=5)).config
    first, second, *rest = config.kv_cache_tensors
    page = second.layer_stride
    moved = replace(config, kv_cache_tensors=(first, replace(second, offset=page), *rest))
    found = errors(lint(moved))["containment"]
    address_map = kv.AddressMap(moved)
    owners = {(owner.layer, owner.block) for owner in address_map.owners(found.numbers["offset"])}
    assert {tuple(found.coordinate.values()), (found.numbers["other_layer"], found.numbers["other_block"])} <= owners


def test_tensors_of_one_group_that_overlap():
    config = tiny()
    tensor = config.kv_cache_tensors[0]
    half = tensor.layers[:2], tensor.layers[2:]
    tensors = replace(tensor, layers=half[0]), replace(tensor, layers=half[1])
    found = errors(lint(replace(config, kv_cache_tensors=tensors)))["illegal-overlap"]
    assert found.numbers == {"offset": 0, "tensors": [0, 1], "pairs": 1} and found.coordinate["block"] == 0


def test_strides_that_fit_no_layout_and_names_that_are_none():
    config = replace(tiny(), kv_cache_layout=None)
    assert "layout-unknown" in {one.rule for one in lint(config)}
    odd = with_tensor(config, layer_stride=3, block_stride=5)
    assert errors(lint(odd))["no-layout-fits"].numbers["strides"] == [[3, 5]]
    assert "layout-name" in errors(lint(replace(tiny(), kv_cache_layout="lbnhc")))
    assert "layout-contradiction" in {one.rule for one in lint(tiny(), "BLNHC")}


def test_a_pool_without_blocks():
    config = kv.make_plan(kv.Selection(model="llama-tiny", available_memory=10)).config
    assert [one.rule for one in lint(config) if one.severity != "note"] == ["no-blocks"]


def test_views_that_a_dtype_cannot_have():
    config = tiny()
    found = errors(lint(with_tensor(config, offset=1, size=config.size_bytes + 1)))
    assert found["view-dtype"].numbers["argument"] == "offset"


def test_a_layout_that_the_backend_does_not_support():
    # FLASH_ATTN declares nothing, so nothing contradicts it.
    plan = kv.make_plan(kv.Selection(model="Qwen/Qwen3-0.6B", backend="FLASH_ATTN", layout="BHLNC", num_blocks=4))
    assert errors(lint(plan)) == {}
    plan = kv.make_plan(kv.Selection(model="Qwen/Qwen3-0.6B", backend="FLEX_ATTENTION", layout="LHBNC", num_blocks=4))
    supported = [layout.name for layout in next(iter(plan.backends.values())).supported_kv_cache_layouts()]
    assert supported == ["LBNHC"]
    assert errors(lint(plan))["unsupported-layout"].numbers["supported"] == supported


def test_kernel_blocks_are_named_with_their_factor():
    found = next(one for one in lint(tiny(block_size=64), kernel_block_sizes=[16]) if one.rule == "kernel-blocks")
    assert found.numbers["factor"] == 4 and found.numbers["num_kernel_blocks"] == 32


def test_the_second_half_of_a_page_is_not_v():
    found = next(one for one in lint(tiny()) if one.rule == "kv-packed")
    assert found.numbers["v_offset"] * 2 == found.numbers["state_bytes"]
    address_map = kv.AddressMap(tiny())
    (owner,) = address_map.owners(found.numbers["page_bytes"] // 2)
    assert owner.field == "K"


def test_ranks_that_differ():
    plans = [kv.make_plan(kv.Selection(model="llama-tiny", layout=layout, num_blocks=blocks))
             for layout, blocks in (("LBNHC", 8), ("LBNHC", 8), ("LBHNC", 9))]
    found = {one.rule: one for one in compare_ranks(plans)}
    assert found["rank-num-blocks"].numbers == {"expected": 8, "found": {"2": 9}}
    assert found["rank-layout"].numbers == {"expected": "LBNHC", "found": {"2": "LBHNC"}}
    assert "layer_stride" in found["rank-strides"].numbers["names"]
    assert found["block-count-in-strides"].numbers["names"] == ["layer_stride"]
    same = compare_ranks([plans[0], plans[1].config, plans[1].address_map])
    assert [one.rule for one in same] == ["block-count-in-strides"]


@pytest.mark.parametrize(("layout", "dependent"), [
    ("LBNHC", ("layer_stride",)), ("LHBNC", ("layer_stride", "head_stride")), ("BLNHC", ()), ("BHLNC", ())])
def test_strides_that_depend_on_the_block_count(layout, dependent):
    few, many = (kv.make_plan(kv.Selection(model="Qwen/Qwen3-0.6B", layout=layout, num_blocks=blocks)).address_map
                 for blocks in (5, 6))
    assert count_dependent(few) == dependent
    axes = ("layer_stride", "block_stride", "head_stride", "state_stride", "byte_stride")
    strides = (one.regions[0].geometry.strides for one in (few, many))
    assert tuple(axis for axis, a, b in zip(axes, *strides) if a != b) == dependent


def test_80_layers_of_100_000_blocks_take_less_than_50_ms():
    for layout in ("LBNHC", "BLNHC", "BHLNC", "LHBNC"):
        plan = kv.make_plan(kv.Selection(model="meta-llama/Llama-3.3-70B-Instruct", layout=layout,
                                         num_blocks=100_000))
        assert len(plan.address_map.layers) == 80
        seconds = []
        for _ in range(5):
            start = time.process_time()
            lint(plan)
            seconds.append(time.process_time() - start)
        assert min(seconds) < 0.05


@pytest.mark.parametrize("subject", [None, 5, True, math.nan, "x" * 1_000_000, [], (), object(), b"", {}, {"a": 1},
                                     {"a": None}, {1: "x"}])
def test_strangers_are_refused(subject):
    with pytest.raises(kv.LayoutError):
        lint(subject)


@pytest.mark.parametrize("call", [
    lambda: lint(tiny(), "sideways"), lambda: lint(tiny(), 3), lambda: lint(kv.AddressMap(tiny()), "BLNHC"),
    lambda: lint(kv.AddressMap(tiny()), kernel_block_sizes=[16]),
    lambda: compare_ranks([]), lambda: compare_ranks([tiny()]), lambda: compare_ranks("ab"),
    lambda: compare_ranks(None),
    lambda: compare_ranks([tiny(), 5]), lambda: wrapped(math.nan), lambda: wrapped(1, 1), lambda: wrapped(1, 10**9),
    lambda: wrapped(True), lambda: unwrapped(1, 0, 5), lambda: unwrapped(1, 1 << 40, 1 << 60),
    lambda: unwrapped("1", 1, 1), lambda: block_span(kv.AddressMap(tiny()), "nobody", 0),
    lambda: block_span(kv.AddressMap(tiny()), 0, 8), lambda: block_span(kv.AddressMap(tiny()), 0, -1),
    lambda: block_span(None, 0, 0), lambda: BlockSplit(16, 5, 1, 16), lambda: BlockSplit(16, 8, 1, 15),
    lambda: BlockSplit(16, 8, 2, 16).slot(-1), lambda: BlockSplit(16, 8, 2, 16).kernel_ids(2),
    lambda: uneven_steps(None, 1, 1), lambda: uneven_steps(kv.MLAAttentionSpec(
        block_size=16, num_kv_heads=1, head_size=4, dtype="int8"), 1, 5),
])
def test_bad_arguments_are_one_clear_error(call):
    with pytest.raises(kv.LayoutError):
        call()


@pytest.mark.parametrize("sizes", [[5], [0], [-1], [True], ["16"], [16, 16], 16, "16", [2**70]])
def test_odd_kernel_block_sizes_are_findings(sizes):
    assert errors(lint(tiny(), kernel_block_sizes=sizes))


@pytest.mark.parametrize("fields", [
    {"offset": 2**62}, {"offset": 2**70}, {"layer_stride": 2**62}, {"layer_stride": 2**80}, {"block_stride": 2**80},
    {"size": 0}, {"size": 2**90}, {"layers": ()}, {"layer_stride": 0}, {"block_stride": 1, "layer_stride": 1}])
def test_huge_and_empty_tensors_are_findings_at_once(fields):
    start = time.process_time()
    found = lint(with_tensor(tiny(), **fields))
    assert time.process_time() - start < 2
    assert errors(found) or fields == {"size": 2**90}


def test_a_padded_page_below_its_content_is_refused_whatever_the_alignment():
    spec = {"type": "MLAAttentionSpec", "block_size": 64, "num_kv_heads": 1, "head_size": 584, "dtype": "uint8",
            "alignment": 576}
    assert spec_from_dict(spec | {"page_size_padded": 37_440}).page_size_bytes == 37_440
    with pytest.raises(kv.LayoutError, match="page_size_padded"):
        spec_from_dict(spec | {"page_size_padded": 100})
