"""The public names: all there, vLLM's own where it has one, and reachable whatever was imported before."""

import subprocess
import sys
from types import ModuleType

import pytest

import kvlayout
from kvlayout.lazy import attach

PROMISED = [
    "KVCacheLayout", "PhysicalLayout", "layout_from_name", "KVQuantMode", "AttentionSpec", "FullAttentionSpec",
    "SlidingWindowSpec", "MLAAttentionSpec", "ChunkedLocalAttentionSpec", "CrossAttentionSpec", "MambaSpec",
    "UniformTypeKVCacheSpecs", "compute_layer_kv_cache_shape_bytes", "compute_layout_strides",
    "get_kv_cache_groups", "KVCacheTensor", "KVCacheGroupSpec", "KVCacheConfig", "build_kv_cache_tensor",
    "get_kv_cache_config_from_groups", "validate_kv_cache_layout", "get_supported_kv_cache_layouts",
    "resolve_kv_cache_layout", "resolve", "record_kv_cache_layout", "resolve_diffusion_kv_cache_layout",
    "get_connector_required_kv_cache_layout", "adopt_kv_cache_layout", "assert_backend_layout_supported",
    "select_common_block_size", "AddressMap", "Owner", "allocate_kv_cache", "KVCache", "Selection", "Plan",
    "make_plan", "LayoutError",
]


@pytest.mark.parametrize("name", sorted({*PROMISED, *kvlayout.__all__}))
def test_every_public_name_is_there(name):
    value = getattr(kvlayout, name)
    assert callable(value) or isinstance(value, tuple)
    assert name in kvlayout.__all__ and name in dir(kvlayout)


def test_the_promised_names_are_public():
    assert set(PROMISED) <= set(kvlayout.__all__)


@pytest.mark.parametrize("before", ["import kvlayout.plan", "import kvlayout.resolve", "from kvlayout import *", ""])
def test_resolve_is_callable_whatever_was_imported(before):
    code = f"{before}\nimport kvlayout\nprint(kvlayout.resolve([['BLNHC']], []).layout.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "BLNHC", done.stderr


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'strides_of'"):
        kvlayout.strides_of  # noqa: B018


def test_attach_imports_once_and_only_when_asked():
    package = ModuleType("a_package")
    sys.modules["a_package"] = package
    try:
        package.__getattr__, package.__dir__, listed = attach("a_package", {"fractions": ("Fraction",)})
        assert listed == ["Fraction"] and "Fraction" not in vars(package)
        assert package.Fraction(1, 2) * 2 == 1
        assert "Fraction" in vars(package)
    finally:
        del sys.modules["a_package"]
