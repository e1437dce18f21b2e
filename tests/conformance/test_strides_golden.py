"""Shapes and strides equal real vLLM's on every record, for every release."""

import pytest

from kvlayout.spec_io import spec_from_dict
from kvlayout.strides import compute_layer_kv_cache_shape_bytes, compute_layout_strides
from kvlayout.versions import VLLM_VERSIONS
from tests.golden_records import assert_same, records


def compute(given: dict) -> dict:
    """Return what ours gives for one record's input, in the record's own form."""
    spec = spec_from_dict(given["spec"])
    strides = compute_layout_strides(spec, given["num_blocks"], given["num_layers"], given["layout"],
                                     given["kernel_block_size"], tuple(given["fixed_strides"]))
    shape = compute_layer_kv_cache_shape_bytes(spec, given["num_blocks"], given["kernel_block_size"])
    return {"num_heads": spec.num_heads, "num_states": spec.num_states,
            "state_content_size_bytes": spec.state_content_size_bytes, "page_size_bytes": spec.page_size_bytes,
            "shape": list(shape), "strides": list(strides)}


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_shapes_and_strides_are_those_of_vllm(version):
    checked = records("strides", version)
    assert len(checked) == 2200
    for record in checked:
        assert_same(record, compute)
