"""Pages of no bytes can't be placed: the error says so, where vLLM divides by zero."""

import pytest

from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec import FullAttentionSpec, MultipleOf, UniformTypeKVCacheSpecs

HEADS = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": "bfloat16"}


def test_a_page_without_states_beside_others():
    specs = {"a": FullAttentionSpec(**HEADS), "b": FullAttentionSpec(**HEADS, tokens_per_state=32)}
    groups = [KVCacheGroupSpec(["a", "b"], UniformTypeKVCacheSpecs(16, specs))]
    with pytest.raises(LayoutError, match="block_size=16: gives pages of no bytes"):
        get_kv_cache_config_from_groups(groups, 10**6, "LBHNC", vllm_version="0.31.0")
    assert get_kv_cache_config_from_groups(groups, 10**6, "LBHNC").kv_cache_tensors[1].block_stride == 0


def test_kernel_blocks_without_states_give_no_alignment():
    spec = FullAttentionSpec(**HEADS, tokens_per_state=16, block_stride_alignment=MultipleOf(8))
    with pytest.raises(LayoutError, match="kernel blocks of 8 tokens, which hold no state.*multiple of 16 tokens"):
        get_kv_cache_config_from_groups([KVCacheGroupSpec(["a"], spec)], 10**6, "LBHNC")
