"""Kernel block sizes: what all backends of a group can work with, and which groups are never split."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError
from kvlayout.kernel_blocks import (
    AttentionGroup,
    prepare_kernel_block_sizes,
    select_common_block_size,
    supported_kernel_block_sizes,
)
from kvlayout.spec import (
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MultipleOf,
    UniformTypeKVCacheSpecs,
)

FULL = FullAttentionSpec(block_size=64, num_kv_heads=2, head_size=64, dtype="bfloat16")
MAMBA = MambaSpec(48, shapes=((4, 64),), dtypes=("float32",))
SIZES = st.lists(st.integers(1, 128) | st.integers(1, 128).map(MultipleOf), min_size=1, max_size=4)


@dataclass
class Takes:
    """A backend that takes the given sizes."""

    sizes: list

    def get_name(self):
        return "TAKES"

    def get_supported_kernel_block_sizes(self, kv_cache_spec=None):
        return self.sizes


class WithoutSpec:
    @staticmethod
    def get_supported_kernel_block_sizes():
        return [32]


class BySpec:
    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [MultipleOf(1)] if kv_cache_spec is None else [kv_cache_spec.block_size // 2]


def accepts(sizes, size):
    return any(size == one if isinstance(one, int) else size % one.base == 0 for one in sizes)


@given(st.integers(1, 256), st.lists(SIZES, max_size=3))
def test_the_largest_divisor_that_all_take(manager, sizes):
    fits = [size for size in range(1, manager + 1)
            if manager % size == 0 and all(accepts(one, size) for one in sizes)]
    backends = [Takes(one) for one in sizes]
    # vLLM tries the manager's size and exact sizes only; this says that it misses no larger divisor by that.
    if fits:
        assert select_common_block_size(manager, backends) == fits[-1]
    else:
        with pytest.raises(LayoutError, match=f"kv_manager_block_size={manager}: has no divisor"):
            select_common_block_size(manager, backends)


def test_small_cases():
    assert select_common_block_size(256, [Takes([16, 64]), Takes([MultipleOf(32)])]) == 64
    assert select_common_block_size(256, [Takes([MultipleOf(16)]), Takes([16, MultipleOf(128)])]) == 256
    assert select_common_block_size(48, []) == 48


def test_the_error_says_what_each_takes():
    with pytest.raises(LayoutError) as caught:
        select_common_block_size(48, [Takes([32, MultipleOf(64)]), WithoutSpec])
    assert "(TAKES takes 32, multiples of 64; WithoutSpec takes 32)" in str(caught.value)
    assert (caught.value.argument, caught.value.value) == ("kv_manager_block_size", 48)


def test_a_backend_may_ask_for_no_spec_or_answer_by_it():
    assert select_common_block_size(64, [WithoutSpec, BySpec], [FULL, FULL]) == 32
    assert select_common_block_size(64, [BySpec], [None]) == 64
    assert select_common_block_size(64, [BySpec], []) == 64


def test_foreign_multiples_become_ours():
    @dataclass
    class Foreign:
        base: int

    Foreign.__name__ = "MultipleOf"
    assert supported_kernel_block_sizes(Takes([Foreign(16), 8])) == (MultipleOf(16), 8)


@pytest.mark.parametrize("sizes", [[0], [-16], ["16"], [1.5], [None], [True], "16", None, 16])
def test_what_is_no_size(sizes):
    with pytest.raises(LayoutError) as caught:
        select_common_block_size(64, [Takes(sizes)])
    assert caught.value.argument == "get_supported_kernel_block_sizes of TAKES"


def test_other_bad_input():
    with pytest.raises(LayoutError, match="kv_manager_block_size=0: must be at least 1"):
        select_common_block_size(0, [])
    with pytest.raises(LayoutError, match="must have one entry for each of 1 backends"):
        select_common_block_size(64, [WithoutSpec], [None, None])
    with pytest.raises(LayoutError, match=r"has no get_supported_kernel_block_sizes\(\)"):
        select_common_block_size(64, [SimpleNamespace()])


def one_group(spec, *, layer_stride=10, block_stride=1, layers=("a", "b")):
    tensor = KVCacheTensor(100, layers, layer_stride, block_stride)
    return KVCacheConfig(1, (tensor,), (KVCacheGroupSpec(layers, spec),))


def test_a_group_is_split_as_its_backends_need():
    assert prepare_kernel_block_sizes(one_group(FULL), [[WithoutSpec, Takes([16, 32])]]) == [32]
    with pytest.raises(LayoutError, match="has no divisor"):
        prepare_kernel_block_sizes(one_group(FULL), [[Takes([16]), WithoutSpec]])


def test_a_packed_group_is_not_split_since_0_32():
    packed = one_group(FULL, layer_stride=1, block_stride=2)
    assert prepare_kernel_block_sizes(packed, [[WithoutSpec]]) == [64]
    assert prepare_kernel_block_sizes(packed, [[WithoutSpec]], vllm_version="0.31.0") == [32]


def test_one_packed_tensor_keeps_only_its_own_group_whole():
    tensors = (KVCacheTensor(100, ("a",), 1, 2), KVCacheTensor(100, ("b",), 10, 1), KVCacheTensor(100, ("c",), 10, 1))
    plan = KVCacheConfig(1, tensors, (KVCacheGroupSpec(("a", "b"), FULL), KVCacheGroupSpec(("c",), FULL)))
    assert prepare_kernel_block_sizes(plan, [[WithoutSpec], [WithoutSpec]]) == [64, 32]


def test_mamba_is_never_split_and_encoder_only_groups_are_left_out():
    encoder = EncoderOnlyAttentionSpec(block_size=64, num_kv_heads=1, head_size=64, dtype="bfloat16")
    groups = tuple(KVCacheGroupSpec((name,), spec) for name, spec in (("a", encoder), ("b", MAMBA), ("c", FULL)))
    assert prepare_kernel_block_sizes(KVCacheConfig(1, (), groups), [[], [], [WithoutSpec]]) == [48, 32]


def test_a_uniform_group_asks_for_its_first_spec_or_the_one_given():
    uniform = UniformTypeKVCacheSpecs(64, {"a": FULL, "b": FULL})
    smaller = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype="bfloat16")
    assert prepare_kernel_block_sizes(one_group(uniform), [[BySpec]]) == [32]
    assert prepare_kernel_block_sizes(one_group(uniform), [[AttentionGroup(BySpec, smaller)]]) == [16]
    # Up to 0.31 nobody is asked with a spec.
    assert prepare_kernel_block_sizes(one_group(uniform), [[BySpec]], vllm_version="0.31.0") == [64]


def test_layers_without_views_are_never_split_since_0_30():
    raw = SimpleNamespace(has_layer_views=False, block_size=80)
    group = SimpleNamespace(layer_names=["a"], kv_cache_spec=raw)
    plan = SimpleNamespace(kv_cache_groups=[group], kv_cache_tensors=[])
    assert prepare_kernel_block_sizes(plan, [[]]) == [80]
    with pytest.raises(LayoutError, match="is not a KV cache spec"):
        prepare_kernel_block_sizes(plan, [[]], vllm_version="0.29.0")


def test_each_group_needs_its_entry():
    with pytest.raises(LayoutError, match="backends_of_group=.*must have one entry for each of 1 groups"):
        prepare_kernel_block_sizes(one_group(FULL), [])
