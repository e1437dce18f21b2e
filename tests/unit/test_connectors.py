"""What each KV connector of vLLM wishes for, asked by name and through a config."""

from types import SimpleNamespace

import pytest

from kvlayout.errors import LayoutConflict, LayoutError
from kvlayout.facts.connectors import CONNECTORS, connector_layout, connector_names, wished_layout
from kvlayout.versions import VLLM_VERSIONS

WISHES = {  # plain model, MLA, HiSparse
    "NixlConnector": ("LBHNC", None, "LBHNC"), "NixlPullConnector": ("LBHNC", None, "LBHNC"),
    "NixlPushConnector": ("LBHNC", None, "LBHNC"), "MooncakeConnector": ("LBHNC", None, "LBHNC"),
    "OffloadingConnector": ("LBHNC", "LBHNC", "BLHNC"), "HiSparseConnector": ("BLHNC",) * 3,
    "ExampleHiddenStatesConnector": ("LBNHC",) * 3,
}


class OfMyOwn:
    @classmethod
    def get_required_kvcache_layout(cls, vllm_config):
        return vllm_config.model_config.wish


class WithoutMethod:
    pass


def config(name, extra=None, **others):
    transfer = SimpleNamespace(kv_connector=name, kv_connector_extra_config=extra or {},
                               kv_connector_module_path=others.pop("module", None))
    return SimpleNamespace(kv_transfer_config=transfer, **others)


@pytest.mark.parametrize("name", CONNECTORS)
def test_wishes_by_name(name):
    asked = (connector_layout(name), connector_layout(name, uses_mla=True), connector_layout(name, hisparse=True))
    assert asked == WISHES.get(name, (None, None, None))


def test_each_release_knows_its_connectors():
    counts = {version: len(connector_names(version)) for version in VLLM_VERSIONS}
    assert counts == {"0.29.0": 16, "0.30.0": 17, "0.31.0": 17, "0.32.0": 17, "0.33.0": 17}
    with pytest.raises(LayoutError, match=r"kv_connector='HiSparseConnector': is not a connector of vLLM 0\.29\.0"):
        connector_layout("HiSparseConnector", vllm_version="0.29.0")
    with pytest.raises(LayoutError, match=r"hisparse=True: doesn't exist in vLLM 0\.29\.0"):
        connector_layout("OffloadingConnector", hisparse=True, vllm_version="0.29.0")


def test_an_unknown_connector_names_the_known_ones():
    with pytest.raises(LayoutError, match="kv_connector='nixl': is not a connector .* NixlConnector, .*Multi"):
        connector_layout("nixl")


def test_connectors_under_one_must_agree():
    assert connector_layout("MultiConnector", connectors=("NixlConnector", "OffloadingConnector")) == "LBHNC"
    assert connector_layout("MultiConnector", connectors=("ExampleConnector",)) is None
    both = ("NixlConnector", "HiSparseConnector")
    assert connector_layout("MultiConnector", connectors=both, uses_mla=True) == "BLHNC"
    with pytest.raises(LayoutConflict, match="NixlConnector wishes LBHNC, HiSparseConnector wishes BLHNC"):
        connector_layout("MultiConnector", connectors=both)


@pytest.mark.parametrize(("others", "wish"), [
    ({}, "LBHNC"),
    ({"model_config": SimpleNamespace(use_mla=False)}, "LBHNC"),
    ({"model_config": SimpleNamespace(use_mla=True)}, None),
    ({"model_config": None}, None),
])
def test_what_the_config_says_of_the_model(others, wish):
    assert wished_layout(config("NixlConnector", **others)) == wish


def test_what_the_config_says_of_hisparse():
    attention = SimpleNamespace(hisparse_config=object())
    assert wished_layout(config("OffloadingConnector", attention_config=attention)) == "BLHNC"
    attention.hisparse_config = None
    assert wished_layout(config("OffloadingConnector", attention_config=attention)) == "LBHNC"


@pytest.mark.parametrize("nothing", [SimpleNamespace(), SimpleNamespace(kv_transfer_config=None)])
def test_no_transfer_no_wish(nothing):
    assert wished_layout(nothing) is None


def test_a_connector_of_your_own_is_asked():
    model = SimpleNamespace(wish="anything")
    assert wished_layout(config("OfMyOwn", module=__name__, model_config=model)) == "anything"
    assert wished_layout(config("WithoutMethod", module=__name__)) is None
    for module, name in ((__name__, "Missing"), ("no.such.module", "OfMyOwn"), ("", "OfMyOwn")):
        with pytest.raises(LayoutError, match=f"offers no connector {name}") as caught:
            wished_layout(config(name, module=module))
        assert (caught.value.argument, caught.value.value) == ("kv_connector_module_path", module)


def test_several_connectors_in_a_config():
    listed = [{"kv_connector": "NixlConnector"}, {"kv_connector": "ExampleConnector"}]
    assert wished_layout(config("MultiConnector", {"connectors": listed})) == "LBHNC"
    listed.append({"kv_connector": "OfMyOwn", "kv_connector_module_path": __name__})
    model = SimpleNamespace(wish="BLHNC", use_mla=False)
    with pytest.raises(LayoutConflict, match="OfMyOwn wishes BLHNC"):
        wished_layout(config("MultiConnector", {"connectors": listed}, model_config=model))
    with pytest.raises(LayoutError, match="names no connector"):
        wished_layout(config("MultiConnector", {"connectors": [{}]}))


@pytest.mark.parametrize("extra", [{}, {"connectors": None}, {"connectors": ["NixlConnector"]}])
def test_a_multi_connector_without_a_list(extra):
    with pytest.raises(LayoutError, match="must list the MultiConnector's connectors"):
        wished_layout(config("MultiConnector", extra))


def test_a_transfer_without_a_name():
    with pytest.raises(LayoutError, match=r"kv_transfer_config\.kv_connector=None: names no connector"):
        wished_layout(config(None))
