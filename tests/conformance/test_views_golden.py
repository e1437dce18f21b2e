"""The torch views of each layer equal real vLLM's on every record: shape, strides, offset and element type."""

import pytest

from kvlayout.config import KVCacheTensor
from kvlayout.layout import KVCacheLayout
from kvlayout.spec_io import spec_from_dict
from kvlayout.strides import compute_layout_strides
from kvlayout.versions import VLLM_VERSIONS
from tests.golden_records import assert_same, records

torch = pytest.importorskip("torch", reason="torch isn't installed here")
from kvlayout.memory.cache import create_kv_cache_views  # noqa: E402


def compute(given: dict) -> dict:
    """Return what ours gives for one record's input, placed as the records' README says."""
    spec, layout = spec_from_dict(given["spec"]), KVCacheLayout[given["layout"]]
    layers, num_blocks, offset = given["layers"], given["num_blocks"], given["offset"]
    packed = spec.page_size_bytes * len(layers)
    pinned = packed if layout.is_block_outermost else None
    layer_stride, block_stride, *_ = compute_layout_strides(
        spec, num_blocks, len(layers), layout, fixed_strides=(None, pinned, None, None, None))
    tensor = KVCacheTensor(packed * num_blocks + offset, layers, layer_stride, block_stride, offset)
    raw = torch.zeros(tensor.size, dtype=torch.int8)
    views = create_kv_cache_views(raw, spec, num_blocks, layout, tensor, given["kernel_block_size"])
    assert all(view.untyped_storage().data_ptr() == raw.data_ptr() for view in views), "a view has memory of its own"
    return {"size": tensor.size, "layer_stride": layer_stride, "block_stride": block_stride,
            "views": [{"shape": list(view.shape), "stride_elements": list(view.stride()),
                       "storage_offset_elements": view.storage_offset(),
                       "dtype": str(view.dtype).removeprefix("torch.")} for view in views]}


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_views_are_those_of_vllm(version):
    checked = records("views", version)
    assert len(checked) == 500
    for record in checked:
        assert_same(record, compute)
