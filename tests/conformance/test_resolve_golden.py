"""Candidates and resolved layouts equal real vLLM's on every record, release by release."""

from types import SimpleNamespace

import pytest

from kvlayout.errors import LayoutError
from kvlayout.resolve import ResolutionError, get_supported_kv_cache_layouts, resolve, resolve_kv_cache_layout
from kvlayout.spec_io import spec_from_dict
from tests.golden_records import records

RECORDS_OF_VERSION = {"0.29.0": 727, "0.30.0": 727, "0.31.0": 800, "0.32.0": 800, "0.33.0": 800}


class Wishing:
    """A connector from outside vLLM; the test sets what it wishes for."""

    wish = None

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config):
        return cls.wish


def candidates(given: dict) -> dict:
    """Return the candidates of one record's backends, in the record's own form."""
    backends = [SimpleNamespace(supported_kv_cache_layouts=lambda declared=declared: declared)
                for declared in given["backends"]]
    return {"supported": [layout.name for layout in get_supported_kv_cache_layouts(backends)]}


def recorded_layout(given: dict, version: str, monkeypatch) -> dict:
    """Return what is resolved and recorded for one record's config, environment and connector."""
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)
    if given["requested"] is not None:
        monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", given["requested"])
    monkeypatch.setattr(Wishing, "wish", given["connector"])
    config = SimpleNamespace(
        cache_config=SimpleNamespace(kv_cache_layout=given["pinned"]),
        kv_transfer_config=SimpleNamespace(kv_connector="Wishing", kv_connector_module_path=__name__))
    try:
        layout = resolve_kv_cache_layout(config, given["supported_layouts"], specs_of(given), vllm_version=version)
    except ResolutionError:
        assert config.cache_config.kv_cache_layout == given["pinned"], "an error has recorded a layout"
        raise
    return {"layout": layout.name, "recorded": config.cache_config.kv_cache_layout}


def answer(given: dict, version: str, monkeypatch) -> dict:
    if given["call"] == "get_supported_kv_cache_layouts":
        return candidates(given)
    return recorded_layout(given, version, monkeypatch)


def specs_of(given: dict) -> list:
    return [spec_from_dict(spec) for spec in given["specs"]]


@pytest.mark.parametrize(("version", "count"), RECORDS_OF_VERSION.items())
def test_layouts_are_those_of_vllm(version, count, monkeypatch):
    checked = records("resolve", version)
    assert len(checked) == count
    for record in checked:
        given = record["input"]
        if "error" in record:
            with pytest.raises(LayoutError):
                answered = answer(given, version, monkeypatch)
                pytest.fail(f"{given}: vLLM raises {record['error']}, ours gives {answered}")
        else:
            assert answer(given, version, monkeypatch) == record["output"], given


def test_the_pure_core_agrees_and_explains_each_record():
    checked = [record for record in records("resolve") if record["input"]["call"] == "resolve_kv_cache_layout"]
    assert len(checked) == 450
    for record in checked:
        given = record["input"]
        options = {name: given[name] for name in ("pinned", "requested", "connector")}
        if "error" in record:
            with pytest.raises(ResolutionError) as caught:
                resolve(given["supported_layouts"], specs_of(given), **options)
            steps = caught.value.steps
            assert steps[-1].after == ()
        else:
            resolution = resolve(given["supported_layouts"], specs_of(given), **options)
            steps = resolution.steps
            assert resolution.layout.name == record["output"]["layout"], given
            assert steps[-1].after == (resolution.layout.name,)
        assert all(one.after == following.before for one, following in zip(steps, steps[1:]))
        assert all(step.sentence.endswith(".") for step in steps)
