"""vLLM-Omni's four functions equal its own on every record."""

from collections import Counter
from types import SimpleNamespace

import pytest

from kvlayout import diffusion
from kvlayout.errors import LayoutError
from kvlayout.spec_io import spec_from_dict
from tests.golden_records import records

RECORDS_OF_CALL = {"resolve_diffusion_kv_cache_layout": 144, "adopt_kv_cache_layout": 64,
                   "assert_backend_layout_supported": 32, "build_kv_cache_tensor": 300}


def config_of(given: dict) -> SimpleNamespace:
    if given["pinned"] == "nocfg":
        return SimpleNamespace()
    return SimpleNamespace(cache_config=SimpleNamespace(kv_cache_layout=given["pinned"]))


def recorded(config: SimpleNamespace) -> str | None:
    return getattr(getattr(config, "cache_config", None), "kv_cache_layout", None)


def resolve_diffusion_kv_cache_layout(given, config):
    layout = diffusion.resolve_diffusion_kv_cache_layout(
        config, indexes_kv_by_block_stride=given["indexes_kv_by_block_stride"],
        required_layout=given["required_layout"])
    return {"layout": layout.name, "recorded": recorded(config)}


def adopt_kv_cache_layout(given, config):
    layout = diffusion.adopt_kv_cache_layout(
        config, SimpleNamespace(kv_cache_layout=given["kv_cache_config_layout"]))
    return {"layout": layout.name, "recorded": recorded(config)}


def assert_backend_layout_supported(given, config):
    backend = {"nobackend": None, "undeclared": SimpleNamespace()}.get(
        given["backend"], SimpleNamespace(indexes_kv_by_block_stride=lambda: given["backend"]))
    assert diffusion.assert_backend_layout_supported(config, backend) is None
    return {"ok": True}


def build_kv_cache_tensor(given, config):
    tensor = diffusion.build_kv_cache_tensor(
        spec_from_dict(given["spec"]), given["num_blocks"], given["layers"], layout=given["layout"],
        offset=given["offset"])
    return {"size": tensor.size, "layer_stride": tensor.layer_stride, "block_stride": tensor.block_stride,
            "offset": tensor.offset, "num_layers": len(tensor.layers)}


CALLS = (resolve_diffusion_kv_cache_layout, adopt_kv_cache_layout, assert_backend_layout_supported,
         build_kv_cache_tensor)


def test_every_record_is_checked():
    assert Counter(record["input"]["call"] for record in records("omni")) == RECORDS_OF_CALL


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_answers_are_those_of_vllm_omni(call):
    for record in records("omni"):
        given = record["input"]
        if given["call"] != call.__name__:
            continue
        config = config_of(given) if "pinned" in given else None
        if "error" in record:
            with pytest.raises(LayoutError):
                pytest.fail(f"{given}: vLLM-Omni raises {record['error']}, ours gives {call(given, config)}")
            assert config is None or recorded(config) == recorded(config_of(given)), "an error has recorded a layout"
        else:
            assert call(given, config) == record["output"], given
