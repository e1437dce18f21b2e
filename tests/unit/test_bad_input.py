"""Every kind of bad input gives one LayoutError that names the argument, the value and the rule."""

from fractions import Fraction

import numpy as np
import pytest

import kvlayout as kv
from kvlayout.geometry import layer_views, tensor_geometry
from kvlayout.interior import state_interior
from kvlayout.spec_io import as_spec, spec_from_dict

GOOD = dict(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
SPEC = kv.FullAttentionSpec(**GOOD)
BIG = kv.FullAttentionSpec(**{**GOOD, "num_kv_heads": 4})
GROUP = kv.KVCacheGroupSpec(["a", "b"], SPEC)
OTHER = kv.KVCacheGroupSpec(["c"], BIG)
TENSOR = kv.build_kv_cache_tensor(SPEC, 4, ["a", "b"])


def spec(**changes):
    return kv.FullAttentionSpec(**{**GOOD, **changes})


def place(groups=(GROUP,), memory=1 << 20, layout="LBNHC", **options):
    return kv.get_kv_cache_config_from_groups(groups, memory, layout, **options)


CONFIG = place(num_gpu_blocks_override=4)
MAP = kv.AddressMap(CONFIG)

BAD = {  # what is done, and the argument that the error must name
    "unknown layout": (lambda: kv.layout_from_name("BNLHC"), "layout"),
    "lower-case layout": (lambda: place(layout="lbnhc"), "layout"),
    "layout of a wrong type": (lambda: place(layout=5), "layout"),
    "prototype with an axis twice": (lambda: kv.PhysicalLayout("LLHNC"), "layout"),
    "zero heads": (lambda: spec(num_kv_heads=0), "num_kv_heads"),
    "negative head size": (lambda: spec(head_size=-1), "head_size"),
    "fractional heads": (lambda: spec(num_kv_heads=1.5), "num_kv_heads"),
    "heads as text": (lambda: spec(num_kv_heads="2"), "num_kv_heads"),
    "heads as a truth value": (lambda: spec(num_kv_heads=True), "num_kv_heads"),
    "zero block size": (lambda: spec(block_size=0), "block_size"),
    "NaN block size": (lambda: spec(block_size=float("nan")), "block_size"),
    "unknown dtype": (lambda: spec(dtype="bfloat17"), "dtype"),
    "no dtype": (lambda: spec(dtype=None), "dtype"),
    "padding below the page": (lambda: spec(page_size_padded=100), "page_size_padded"),
    "padding of nothing": (lambda: spec(page_size_padded=0), "page_size_padded"),
    "zero content bytes": (lambda: spec(state_content_bytes=0), "state_content_bytes"),
    "zero head slots": (lambda: spec(num_head_slots=0), "num_head_slots"),
    "zero tokens a state": (lambda: spec(tokens_per_state=0), "tokens_per_state"),
    "negative tokens a state": (lambda: spec(tokens_per_state=Fraction(-1, 2)), "tokens_per_state"),
    "tokens a state as words": (lambda: spec(tokens_per_state="a half"), "tokens_per_state"),
    "unknown quantisation": (lambda: spec(kv_quant_mode="INT3"), "kv_quant_mode"),
    "zero stride alignment": (lambda: spec(block_stride_alignment=0), "block_stride_alignment"),
    "zero multiple": (lambda: kv.MultipleOf(0), "MultipleOf.base"),
    "zero page alignment": (lambda: kv.MLAAttentionSpec(**GOOD, alignment=0), "alignment"),
    "states without dtypes": (lambda: kv.MambaSpec(16, ((2, 3),), ()), "dtypes"),
    "no states": (lambda: kv.MambaSpec(16, (), ()), "dtypes"),
    "a state of no size": (lambda: kv.MambaSpec(16, ((2, 0),), ("bfloat16",)), "shapes"),
    "unknown state dtype": (lambda: kv.MambaSpec(16, ((2, 2),), ("half",)), "dtypes"),
    "a group of no specs": (lambda: kv.UniformTypeKVCacheSpecs(16, {}), "kv_cache_specs"),
    "not a spec": (lambda: as_spec({"block_size": 16}), "spec"),
    "unknown spec class": (lambda: spec_from_dict({"type": "MagicSpec"}), "type"),
    "unknown spec field": (lambda: spec_from_dict({"type": "FullAttentionSpec", **GOOD, "heads": 2}), "heads"),
    "missing spec field": (lambda: spec_from_dict({"type": "FullAttentionSpec", "block_size": 16}), "num_kv_heads"),
    "specs of several layers where one is needed": (
        lambda: kv.compute_layout_strides(kv.UniformTypeKVCacheSpecs(16, {"a": SPEC}), 4, 1, "LBNHC"), "spec"),
    "kernel block that doesn't divide": (
        lambda: kv.compute_layer_kv_cache_shape_bytes(SPEC, 4, 5), "kernel_block_size"),
    "kernel block of nothing": (lambda: kv.compute_layer_kv_cache_shape_bytes(SPEC, 4, 0), "kernel_block_size"),
    "negative blocks": (lambda: kv.compute_layer_kv_cache_shape_bytes(SPEC, -1), "num_blocks"),
    "negative layers": (lambda: kv.compute_layout_strides(SPEC, 4, -1, "LBNHC"), "num_layers"),
    "four fixed strides": (
        lambda: kv.compute_layout_strides(SPEC, 4, 2, "LBNHC", fixed_strides=(None,) * 4), "fixed_strides"),
    "fixed stride of zero": (
        lambda: kv.compute_layout_strides(SPEC, 4, 2, "LBNHC", fixed_strides=(0, None, None, None, None)),
        "fixed_strides"),
    "padded page that is split": (
        lambda: kv.compute_layout_strides(spec(page_size_padded=10_000), 4, 2, "LBNHC", 8), "kernel_block_size"),
    "padded page in a layout that scatters it": (
        lambda: kv.compute_layout_strides(spec(page_size_padded=10_000), 4, 2, "BHLNC"), "layout"),
    "no layer": (lambda: kv.build_kv_cache_tensor(SPEC, 4, []), "layers"),
    "a layer twice": (lambda: kv.build_kv_cache_tensor(SPEC, 4, ["a", "a"]), "layers"),
    "one name for a list of names": (lambda: kv.build_kv_cache_tensor(SPEC, 4, "layers.0"), "layers"),
    "negative offset": (lambda: kv.build_kv_cache_tensor(SPEC, 4, ["a"], offset=-1), "offset"),
    "no blocks for several layers": (lambda: kv.build_kv_cache_tensor(SPEC, 0, ["a", "b"]), "num_blocks"),
    "tensor of negative size": (lambda: kv.KVCacheTensor(-1, ["a"], 1, 1), "size"),
    "tensor with a fractional stride": (lambda: kv.KVCacheTensor(8, ["a"], 1.5, 1), "layer_stride"),
    "config of negative blocks": (lambda: kv.KVCacheConfig(-1, [], []), "num_blocks"),
    "negative memory": (lambda: place(memory=-1), "available_memory"),
    "memory as text": (lambda: place(memory="16GiB"), "available_memory"),
    "negative block override": (lambda: place(num_gpu_blocks_override=-1), "num_gpu_blocks_override"),
    "groups without layers": (lambda: place([kv.KVCacheGroupSpec([], SPEC)]), "kv_cache_groups"),
    "mixed pages on LBHNC": (lambda: place([GROUP, OTHER], layout="LBHNC"), "layout"),
    "mixed pages on BHLNC": (lambda: place([GROUP, OTHER], layout="BHLNC"), "layout"),
    "alignment on a layout that scatters pages": (
        lambda: place([kv.KVCacheGroupSpec(["a"], spec(block_stride_alignment=4096 * 3))], layout="LHBNC"), "layout"),
    "pages of no bytes": (
        lambda: place([kv.KVCacheGroupSpec(["a"], spec(tokens_per_state=32))]), "block_size"),
    "unknown release": (lambda: place(vllm_version="0.28.0"), "vllm_version"),
    "config without a layout": (lambda: kv.AddressMap(kv.KVCacheConfig(4, [TENSOR], [GROUP])), "layout"),
    "tensor of an unknown layer": (
        lambda: kv.AddressMap(kv.KVCacheConfig(4, [TENSOR], [OTHER], "LBNHC")), "kv_cache_tensors"),
    "layer without a tensor": (
        lambda: kv.AddressMap(kv.KVCacheConfig(4, [TENSOR], [GROUP, OTHER], "LBNHC")), "kv_cache_tensors"),
    "layer in two tensors": (
        lambda: kv.AddressMap(kv.KVCacheConfig(4, [TENSOR, TENSOR], [GROUP], "LBNHC")), "kv_cache_tensors"),
    "two allocations": (
        lambda: kv.KVCacheConfig(4, [TENSOR, kv.KVCacheTensor(8, ["c"], 1, 1)], [GROUP]).size_bytes,
        "kv_cache_tensors"),
    "kernel sizes for another number of groups": (
        lambda: kv.AddressMap(CONFIG, kernel_block_sizes=[8, 8]), "kernel_block_sizes"),
    "kernel blocks of a packed block": (
        lambda: kv.AddressMap(place(layout="BLNHC"), kernel_block_sizes=[8]), "kernel_block_size"),
    "kernel blocks of a state page": (
        lambda: kv.AddressMap(place([kv.KVCacheGroupSpec(["m"], kv.MambaSpec(16, ((2, 2),), ("int8",)))]),
                              kernel_block_sizes=[8]), "kernel_block_size"),
    "unknown layer": (lambda: MAP.offset("z", 0), "layer"),
    "block past the end": (lambda: MAP.offset("a", 4), "block"),
    "negative state": (lambda: MAP.offset("a", 0, 0, -1), "state"),
    "fractional head": (lambda: MAP.offset("a", 0, 0.5), "head"),
    "negative address": (lambda: MAP.owners(-1), "offset"),
    "addresses as floats": (lambda: MAP.locate(np.array([1.0])), "offsets"),
    "unknown group": (lambda: MAP.locate(np.array([1]), group=1), "group"),
    "padding past the end": (lambda: MAP.padding_of(MAP.size_bytes), "offset"),
    "run of a block past the end": (lambda: MAP.runs(block=[3, 4]), "block"),
    "interior of another size": (
        lambda: kv.AddressMap(CONFIG, interiors={"a": state_interior([("K", 4, 8)], 4)}), "fields"),
    "fields larger than C": (lambda: state_interior([("K", 5, 8)], 4), "parts"),
    "half a byte": (lambda: kv.Field("K", 0, 3, 4), "Field.num_elements"),
    "unknown interior scope": (lambda: kv.Interior((), "row"), "scope"),
    "view of a buffer that is too small": (
        lambda: layer_views(tensor_geometry(SPEC, 4, "LBNHC", TENSOR), TENSOR.layers, "bfloat16", 100),
        "kv_cache_tensor"),
    "view at an odd offset": (
        lambda: layer_views(tensor_geometry(SPEC, 4, "LBNHC", kv.build_kv_cache_tensor(SPEC, 4, ["a"], offset=1)),
                            ["a"], "bfloat16", 1 << 20), "offset"),
    "selection that isn't JSON": (lambda: kv.Selection.from_json("{'model': 1}"), "selection"),
    "NaN in a selection": (lambda: kv.Selection.from_json('{"tp_size": NaN}'), "selection"),
    "trailing text in a selection": (lambda: kv.Selection.from_json('{"model": "x"} {}'), "selection"),
    "unknown field in a selection": (lambda: kv.Selection.from_json('{"tensor_parallel": 2}'), "selection"),
    "text for a number in a selection": (lambda: kv.Selection.from_json('{"tp_size": "2"}'), "tp_size"),
    "zero ranks": (lambda: kv.Selection(tp_size=0), "tp_size"),
    "rank past the last": (lambda: kv.Selection(pp_size=2, pp_rank=2), "pp_rank"),
    "blocks and memory together": (lambda: kv.Selection(num_blocks=1, available_memory=1), "available_memory"),
    "unknown layout in a selection": (lambda: kv.Selection(layout="LNBH"), "layout"),
    "unknown request in a selection": (lambda: kv.Selection(requested="LNBHC"), "requested"),
    "unknown release in a selection": (lambda: kv.Selection(vllm_version="1.0"), "vllm_version"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_error_with_argument_value_and_rule(kind):
    act, argument = BAD[kind]
    with pytest.raises(kv.LayoutError) as caught:
        act()
    error = caught.value
    assert error.argument == argument
    assert error.rule and str(error).startswith(f"{argument}=")
    assert error.rule in str(error) and (not error.cure or error.cure in str(error))


def test_enough_kinds_are_covered():
    assert len(BAD) >= 40


def test_a_long_value_is_shortened_in_the_text_but_kept_on_the_error():
    error = kv.LayoutError("argument", "x" * 1000, "is long")
    assert len(str(error)) < 250 and error.value == "x" * 1000
