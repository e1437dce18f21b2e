"""A worker's plan (blocks and tensors) equals real vLLM's on every record, release by release."""

from dataclasses import asdict
from functools import partial

import pytest

from kvlayout.config import KVCacheGroupSpec
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec_io import spec_from_dict
from tests.golden_records import assert_same, records

# Before 0.31 specs have no block_stride_alignment, which 67 records use.
RECORDS_OF_VERSION = {"0.29.0": 383, "0.30.0": 383, "0.31.0": 450, "0.32.0": 450, "0.33.0": 450}


def compute(given: dict, vllm_version: str) -> dict:
    """Return what ours plans for one record's input, in the record's own form."""
    groups = [KVCacheGroupSpec(group["layer_names"], spec_from_dict(group["spec"])) for group in given["groups"]]
    config = get_kv_cache_config_from_groups(
        groups, given["available_memory"], given["layout"],
        num_gpu_blocks_override=given["num_gpu_blocks_override"], vllm_version=vllm_version)
    tensors = [asdict(tensor) | {"layers": list(tensor.layers)} for tensor in config.kv_cache_tensors]
    return {"num_blocks": config.num_blocks, "tensors": tensors}


@pytest.mark.parametrize(("version", "count"), RECORDS_OF_VERSION.items())
def test_plans_are_those_of_vllm(version, count):
    checked = records("plan", version)
    assert len(checked) == count
    for record in checked:
        assert_same(record, partial(compute, vllm_version=version))
