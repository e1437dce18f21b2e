"""Our objects become real vLLM's, with vLLM's own sizes, and come back as they were."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.errors import LayoutError
from kvlayout.upstream.convert import from_vllm, to_vllm
from kvlayout.upstream.release import Release, load
from kvlayout.versions import VLLM_VERSIONS
from tests.strategies import attention_specs, configs, layouts, mamba_specs

pytestmark = [pytest.mark.vllm,
              # torch's and vLLM's own imports warn of what they themselves use.
              pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def release() -> Release:
    return load()


def known(release: Release, convert, value):
    """``value`` as vLLM's; None where this release has no such class or field, which must be what the error says."""
    try:
        return convert(value)
    except LayoutError as error:
        assert release.version != VLLM_VERSIONS[-1] and release.version in error.rule, error
        return None


quick = settings(max_examples=150, suppress_health_check=list(HealthCheck))


@quick
@given(st.one_of(attention_specs(), mamba_specs()))
def test_specs_become_vllms_and_come_back(release, spec):
    theirs = known(release, to_vllm, spec)
    if theirs is None:
        return
    assert type(theirs).__module__.startswith("vllm.") and type(theirs).__name__ == type(spec).__name__
    assert from_vllm(theirs) == spec
    assert (theirs.num_heads, theirs.num_states, theirs.state_content_size_bytes, theirs.page_size_bytes) == \
        (spec.num_heads, spec.num_states, spec.state_content_size_bytes, spec.page_size_bytes)


@quick
@given(configs(), layouts)
def test_configs_become_vllms_and_come_back(release, config, layout):
    theirs = known(release, to_vllm, config)
    if theirs is not None:
        assert type(theirs).__module__ == release.interface.__name__
        assert from_vllm(theirs) == config
        assert from_vllm(to_vllm({"a": [config], "b": tuple(config.kv_cache_groups)})) == \
            {"a": [config], "b": config.kv_cache_groups}
    assert from_vllm(to_vllm(layout)) is layout


def test_every_mode_and_preset_comes_back(release):
    for mode in kv.KVQuantMode:
        theirs = known(release, to_vllm, mode)
        assert theirs is None or (from_vllm(theirs) is mode and type(theirs).__module__.startswith("vllm."))
    for model in kv.presets():
        plan = kv.make_plan(kv.Selection(model=model, vllm_version=release.rules))
        for value in (plan.specs, plan.config, list(plan.groups)):
            assert from_vllm(to_vllm(value)) == value


@pytest.mark.parametrize("obj", [None, 3, "LBNHC", object()])
def test_what_has_no_counterpart_is_refused(obj):
    for convert in (to_vllm, from_vllm):
        with pytest.raises(LayoutError, match="counterpart"):
            convert(obj)
