"""The groups of a model's layers equal real vLLM's on every record, release by release."""

import pytest

from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.grouping import get_kv_cache_groups
from kvlayout.spec import UniformTypeKVCacheSpecs
from kvlayout.spec_io import spec_from_dict
from kvlayout.versions import VLLM_VERSIONS
from tests.golden_records import records


def answer(given: dict, version: str) -> dict:
    """Return how ours groups one record's layers, in the record's own form."""
    specs = [spec_from_dict(spec) for spec in given["specs"]]
    layers = {name: specs[index] for name, index in given["layers"]}
    groups = get_kv_cache_groups(
        layers, given["layout"], vllm_version=version,
        disable_hybrid_kv_cache_manager=given["disable_hybrid_kv_cache_manager"])
    position = {name: index for index, name in enumerate(layers)}
    return {"groups": [{"layers": [position[name] for name in group.layer_names], "spec": facts(group)}
                       for group in groups]}


def facts(group: KVCacheGroupSpec) -> dict:
    """Return what a record says of a group's spec."""
    spec = group.kv_cache_spec
    told = {"type": type(spec).__name__, "block_size": spec.block_size, "page_size_bytes": spec.page_size_bytes}
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return told | {"layers": [one.page_size_bytes for one in spec.kv_cache_specs.values()]}
    return told | {"page_size_padded": spec.page_size_padded, "sliding_window": getattr(spec, "sliding_window", None)}


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_groups_are_those_of_vllm(version):
    checked = records("groups", version)
    assert len(checked) == 400
    for record in checked:
        if "error" in record:
            with pytest.raises(LayoutError):
                pytest.fail(f"{record['input']}: vLLM raises {record['error']}, "
                            f"ours gives {answer(record['input'], version)}")
        else:
            assert answer(record["input"], version) == record["output"], record["input"]


def test_the_oldest_release_groups_some_models_otherwise():
    changed = [(old, new) for old, new in zip(records("groups", "0.29.0"), records("groups"))
               if old.get("output") != new.get("output")]
    assert len(changed) == 11
    for old, new in changed:
        assert answer(old["input"], "0.29.0") != answer(new["input"], "0.33.0")
