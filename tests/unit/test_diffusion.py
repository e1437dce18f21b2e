"""vLLM-Omni's pin, adoption and check of the diffusion cache's layout, and what their errors say."""

from types import SimpleNamespace

import pytest

from kvlayout import diffusion, placement
from kvlayout.diffusion import (
    adopt_kv_cache_layout,
    assert_backend_layout_supported,
    get_connector_required_kv_cache_layout,
    resolve_diffusion_kv_cache_layout,
)
from kvlayout.errors import LayoutConflict, LayoutError
from kvlayout.layout import KVCacheLayout, PhysicalLayout


class Paged:
    """A backend that reads pages by the runtime block stride."""

    @staticmethod
    def get_name():
        return "PAGED"

    @staticmethod
    def indexes_kv_by_block_stride():
        return True


class HndConnector:
    @staticmethod
    def get_required_kvcache_layout(vllm_config):
        return "HND"


def config(pinned=None, **others):
    return SimpleNamespace(cache_config=SimpleNamespace(kv_cache_layout=pinned), **others)


def ride(name):
    return SimpleNamespace(kv_cache_layout=name)


@pytest.mark.parametrize("layout", KVCacheLayout)
@pytest.mark.parametrize("outermost", [False, True])
def test_every_layout_is_pinned_exactly_where_it_meets_the_need(layout, outermost):
    for given, expected in (({}, None), ({"required_layout": layout}, layout.name)):
        fresh = config(None if expected else layout.name)
        if layout.is_block_outermost == outermost:
            assert resolve_diffusion_kv_cache_layout(fresh, indexes_kv_by_block_stride=outermost, **given) is layout
            assert fresh.cache_config.kv_cache_layout == layout.name
        else:
            before = fresh.cache_config.kv_cache_layout
            with pytest.raises(LayoutConflict, match=f"contradicts the backend.*is_block_outermost={outermost}"):
                resolve_diffusion_kv_cache_layout(fresh, indexes_kv_by_block_stride=outermost, **given)
            assert fresh.cache_config.kv_cache_layout == before


def test_the_defaults():
    assert resolve_diffusion_kv_cache_layout(config()) is KVCacheLayout.LBNHC
    assert resolve_diffusion_kv_cache_layout(config(), indexes_kv_by_block_stride=True) is KVCacheLayout.BLNHC
    assert resolve_diffusion_kv_cache_layout(SimpleNamespace()) is KVCacheLayout.LBNHC


def test_a_required_layout_must_be_exactly_the_pinned_one():
    with pytest.raises(LayoutConflict) as caught:
        resolve_diffusion_kv_cache_layout(config("LBNHC"), required_layout="LBHNC")
    assert str(caught.value) == ("cache_config.kv_cache_layout='LBNHC': contradicts the connector, which requires "
                                 "LBHNC. Pin LBHNC, or leave the layout unset.")


@pytest.mark.parametrize("required", ["HND", "NHD", "lbnhc", "", 5, 1.5, ("LBNHC",), PhysicalLayout("HBLNC")])
def test_what_is_no_required_layout(required):
    fresh = config()
    with pytest.raises(LayoutError) as caught:
        resolve_diffusion_kv_cache_layout(fresh, required_layout=required)
    assert (caught.value.argument, caught.value.value) == ("required_layout", required)
    assert fresh.cache_config.kv_cache_layout is None


def test_a_pinned_alias_is_unknown():
    with pytest.raises(LayoutError, match="cache_config.kv_cache_layout='HND': is not a layout that vLLM-Omni knows"):
        resolve_diffusion_kv_cache_layout(config("HND"))


def test_adopting():
    fresh = config()
    assert adopt_kv_cache_layout(fresh, ride("BHLNC")) is KVCacheLayout.BHLNC
    assert fresh.cache_config.kv_cache_layout == "BHLNC"
    assert adopt_kv_cache_layout(fresh, ride("BHLNC")) is KVCacheLayout.BHLNC
    assert adopt_kv_cache_layout(SimpleNamespace(), ride("BHLNC")) is KVCacheLayout.BHLNC
    with pytest.raises(LayoutConflict, match="kv_cache_layout='LBNHC': disagrees with .* which has BHLNC"):
        adopt_kv_cache_layout(fresh, ride("LBNHC"))


def test_adopting_without_a_name_pins_the_default_and_refuses_a_block_outermost_preset():
    fresh = config()
    assert adopt_kv_cache_layout(fresh, ride(None)) is KVCacheLayout.LBNHC
    assert fresh.cache_config.kv_cache_layout == "LBNHC"
    with pytest.raises(LayoutConflict, match="is_block_outermost=False"):
        adopt_kv_cache_layout(config("BLNHC"), SimpleNamespace())


def test_adopting_a_bad_name_records_nothing():
    fresh = config()
    with pytest.raises(LayoutError, match="kv_cache_config.kv_cache_layout='BAD'"):
        adopt_kv_cache_layout(fresh, ride("BAD"))
    assert fresh.cache_config.kv_cache_layout is None


def test_asserting():
    for unchecked in ((config("LBNHC"), None), (config(), Paged), (SimpleNamespace(), Paged),
                      (config("LBNHC"), SimpleNamespace()), (config("BLHNC"), Paged)):
        assert assert_backend_layout_supported(*unchecked) is None
    with pytest.raises(LayoutConflict, match="contradicts PAGED, which needs is_block_outermost=True. Pin BLNHC"):
        assert_backend_layout_supported(config("LBNHC"), Paged)


def test_the_connector_variant():
    def wish(name, module=None):
        transfer = SimpleNamespace(kv_connector=name, kv_connector_module_path=module)
        return get_connector_required_kv_cache_layout(SimpleNamespace(kv_transfer_config=transfer))

    assert wish("NixlConnector") is KVCacheLayout.LBHNC
    assert wish("ExampleConnector") is None
    assert get_connector_required_kv_cache_layout(SimpleNamespace()) is None
    with pytest.raises(LayoutError, match="get_required_kvcache_layout='HND': is not a layout that vLLM-Omni knows"):
        wish("HndConnector", __name__)
    with pytest.raises(LayoutError, match="kv_connector='NoSuch'"):
        wish("NoSuch")


def test_the_tensor_builder_is_the_one_of_placement():
    assert diffusion.build_kv_cache_tensor is placement.build_kv_cache_tensor
