"""Strides that don't nest, against every byte; and what the lints make of them."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.clinic.interleaved import meets_itself
from kvlayout.clinic.linting import lint
from kvlayout.strided import StridedSet

axes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), min_size=1, max_size=4)


@settings(max_examples=1500, deadline=None)
@given(axes, st.integers(1, 4))
def test_sharing_is_what_every_address_says(found, run):
    extents, strides = [n for n, _ in found] + [run], [s for _, s in found] + [1]
    addresses = np.zeros(1, dtype=int)
    for count, stride in zip(extents, strides):
        addresses = (addresses[:, None] + np.arange(count) * stride).ravel()
    assert meets_itself(StridedSet(7, extents, strides)) is (len(np.unique(addresses)) < len(addresses))


def test_interleaved_layers_are_no_error():
    spec = kv.FullAttentionSpec(block_size=2, num_kv_heads=1, head_size=4, dtype="bfloat16")
    assert spec.page_size_bytes == 32
    tensor = kv.KVCacheTensor(256, ("a", "b"), layer_stride=96, block_stride=64)
    config = kv.KVCacheConfig(3, (tensor,), (kv.KVCacheGroupSpec(("a", "b"), spec),), "LBNHC")
    assert not [one for one in lint(config) if one.is_error]
    closer = kv.KVCacheTensor(256, ("a", "b"), layer_stride=80, block_stride=64)
    config = kv.KVCacheConfig(3, (closer,), config.kv_cache_groups, "LBNHC")
    assert "self-overlap" in {one.rule for one in lint(config)}


@pytest.mark.parametrize(("extents", "strides", "meets"), [
    ((80, 100_000, 32), (96, 64, 1), True), ((2, 100_000, 32), (64 * 100_000 - 32, 64, 1), False),
    ((2, 4, 128), (96, 64, 1), True)])
def test_it_is_quick(extents, strides, meets):
    begin = time.process_time()
    assert meets_itself(StridedSet(0, extents, strides)) is meets
    assert time.process_time() - begin < 0.05
