"""The resolver: its precedence, its steps as data, and what its errors say."""

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.errors import LayoutConflict, LayoutError
from kvlayout.layout import KVCacheLayout, PhysicalLayout
from kvlayout.resolve import (
    ResolutionError,
    explain_kv_cache_layout,
    get_resolved_kv_cache_layout,
    record_kv_cache_layout,
    resolve,
    resolve_kv_cache_layout,
)
from kvlayout.spec import CircularBufferSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec, UniformTypeKVCacheSpecs
from kvlayout.versions import VLLM_VERSIONS

NAMES = tuple(KVCacheLayout.__members__)
ALL = [list(NAMES)]
FULL = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
WIDE = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=256, dtype="bfloat16")
STATE = MambaSpec(16, shapes=((4, 64),), dtypes=("float32",))
REPLICATED = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", sliding_window=64,
                               dcp_sharded=False)
RING = CircularBufferSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", dcp_sharded=False)
RULES = ["pinned", "workers-agree", "mixed-specs", "dcp", "requested", "connector", "default"]


class NoViews:
    """A layer that lays out its bytes itself, as vLLM's HiSparse specs do."""

    has_layer_views = False


def rules(steps):
    return [step.rule for step in steps]


def failure(*args, **options) -> ResolutionError:
    with pytest.raises(ResolutionError) as caught:
        resolve(*args, **options)
    return caught.value


def config(pinned=None, transfer=None):
    return SimpleNamespace(cache_config=SimpleNamespace(kv_cache_layout=pinned), kv_transfer_config=transfer)


def nixl():
    return SimpleNamespace(kv_connector="NixlConnector")


@pytest.fixture(autouse=True)
def no_request(monkeypatch):
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)


layouts = st.sampled_from(NAMES)
wishes = st.none() | layouts | st.sampled_from(["NHD", "HND", "nhd", ""])
inputs = st.fixed_dictionaries({
    "supported_layouts": st.lists(layouts, unique=True).flatmap(lambda names: st.integers(0, 3).map(
        lambda workers: [names] * workers)) | st.lists(st.lists(layouts, unique=True), max_size=3),
    "specs": st.lists(st.sampled_from([FULL, WIDE, STATE, REPLICATED, RING])),
    "pinned": st.none() | wishes, "requested": wishes, "connector": wishes,
    "vllm_version": st.sampled_from(VLLM_VERSIONS),
})


@given(inputs)
def test_steps_are_complete_and_narrow(given_inputs):
    try:
        resolution = resolve(**given_inputs)
        steps = resolution.steps
        assert steps[-1].after == (resolution.layout.name,)
        assert given_inputs["pinned"] is not None or resolution.layout.name in given_inputs["supported_layouts"][0]
        assert resolution.why == steps[-1].sentence
    except ResolutionError as error:
        steps = error.steps
        assert steps[-1].after == ()
    assert rules(steps) == RULES[:len(steps)]
    assert set(steps[0].before) == {name for names in given_inputs["supported_layouts"] for name in names}
    for one, following in zip(steps, steps[1:]):
        assert following.before == one.after
    for step in steps:
        gone = set(step.before) - set(step.after)
        assert step.rule == "pinned" or set(step.after) <= set(step.before)
        # Only a connector's wish may be refused without having been a candidate.
        assert gone == set(step.dropped) or (step.rule == "connector" and step.before == step.after)
        assert step.sentence.endswith(".")
        assert all(step.dropped.values())


@given(inputs)
def test_precedence_is_pin_then_request_then_connector_then_order(given_inputs):
    try:
        resolution = resolve(**given_inputs)
    except ResolutionError:
        return
    meant = {"NHD": "LBNHC", "HND": "LBHNC"}
    pinned, requested, connector = (given_inputs[name] for name in ("pinned", "requested", "connector"))
    *_, last = resolution.steps
    if pinned is not None:
        assert (last.rule, resolution.layout.name) == ("pinned", meant.get(pinned, pinned))
    elif requested is not None:
        assert (last.rule, resolution.layout.name) == ("requested", meant.get(requested, requested))
    elif meant.get(connector, connector) in last.before:
        assert (last.rule, resolution.layout.name) == ("connector", meant.get(connector, connector))
    else:
        assert (last.rule, resolution.layout.name) == ("default", last.before[0])


def test_a_step_table_in_full():
    resolution = resolve([["LHBNC", "LBNHC", "BLHNC"]] * 2, {"a": FULL, "b": WIDE}, connector="HND")
    assert resolution.layout is KVCacheLayout.LBNHC
    assert [(step.rule, step.after) for step in resolution.steps] == [
        ("pinned", ("LHBNC", "LBNHC", "BLHNC")), ("workers-agree", ("LHBNC", "LBNHC", "BLHNC")),
        ("mixed-specs", ("LBNHC", "BLHNC")), ("dcp", ("LBNHC", "BLHNC")), ("requested", ("LBNHC", "BLHNC")),
        ("connector", ("LBNHC", "BLHNC")), ("default", ("LBNHC",))]
    mixed, wish, default = resolution.steps[2], resolution.steps[5], resolution.steps[6]
    assert mixed.dropped == {"LHBNC": "is not block-compact"}
    assert "2 page shapes" in mixed.sentence
    assert "8 x 16 in 65,536 bytes, 8 x 16 in 131,072 bytes" in mixed.sentence
    assert wish.sentence == ("The connector wishes for HND (LBHNC), which is not a candidate: not every backend "
                             "supports LBHNC. Its wish is dropped.")
    assert set(wish.dropped) == {"LBHNC"}
    assert set(default.dropped) == {"BLHNC"}


def test_equal_steps_hash_alike():
    assert len({*resolve(ALL, [FULL]).steps, *resolve(ALL, [FULL]).steps}) == len(RULES)


def test_a_pin_wins_unchecked():
    resolution = resolve([["BLHNC"]], [FULL, WIDE], pinned="HND", requested="BLHNC", connector="nonsense")
    assert resolution.layout is KVCacheLayout.LBHNC
    assert resolution.why == ("HND (LBHNC) is on cache_config already and wins unchecked, "
                              "although no worker reports it.")
    assert resolve([], None, pinned=PhysicalLayout("HBLNC")).layout == PhysicalLayout("HBLNC")


@pytest.mark.parametrize(("version", "specs", "layout"), [
    ("0.33.0", [FULL, REPLICATED], "BLNHC"),
    ("0.31.0", [FULL, REPLICATED], "BLNHC"),
    ("0.30.0", [FULL, REPLICATED], "LBNHC"),
    ("0.33.0", [FULL, RING], "LBNHC"),
    ("0.31.0", [FULL, RING], "BLNHC"),
    ("0.33.0", [FULL, STATE], "LBNHC"),
])
def test_dcp_rule_of_each_release(version, specs, layout):
    resolution = resolve([["LBNHC", "BLNHC", "BLHNC"]], specs, vllm_version=version)
    assert resolution.layout.name == layout
    dcp = resolution.steps[3]
    assert set(dcp.dropped) == ({"LBNHC"} if layout == "BLNHC" else set())
    if version == "0.30.0":
        assert dcp.sentence == "vLLM 0.30.0 has no rule for DCP."


def test_specs_without_views_do_not_count_since_0_31():
    assert resolve([["LHBNC"]], [FULL, NoViews()]).layout is KVCacheLayout.LHBNC
    with pytest.raises(LayoutError, match="is not a KV cache spec"):
        resolve([["LHBNC"]], [FULL, NoViews()], vllm_version="0.30.0")


def test_an_alias_in_a_report_means_its_layout():
    resolution = resolve([["NHD", "BLHNC"]], [FULL])
    assert resolution.layout is KVCacheLayout.LBNHC
    assert resolution.steps[0].before == ("LBNHC", "BLHNC")


def test_members_may_stand_for_names():
    assert resolve([list(KVCacheLayout)], [FULL], requested=KVCacheLayout.BHLNC).layout is KVCacheLayout.BHLNC


def test_workers_that_disagree():
    error = failure([["LBNHC", "BLHNC"], ["BLHNC"]], [FULL])
    assert (error.argument, error.value) == ("supported_layouts", [["LBNHC", "BLHNC"], ["BLHNC"]])
    assert "must be the same list from every worker" in str(error)
    assert error.steps[-1].dropped == {"LBNHC": "is not reported by every worker",
                                       "BLHNC": "is reported by every worker, but their lists differ"}


@pytest.mark.parametrize("reports", [[], [[]], [["LBNHC"], []], None])
def test_no_reports(reports):
    error = failure(reports, [FULL])
    assert error.argument == "supported_layouts"
    assert "at least one layout for each of at least one worker" in str(error)
    assert rules(error.steps) == ["pinned", "workers-agree"]


def test_no_block_compact_candidate():
    error = failure([["LHBNC", "BHLNC"]], [FULL, STATE])
    assert error.value == ["LHBNC", "BHLNC"]
    assert "hold no block-compact layout: The layers have 2 page shapes" in str(error)
    assert "Use backends that support LBHNC, LBNHC, BLHNC or BLNHC" in str(error)
    assert error.steps[-1].dropped == dict.fromkeys(["LHBNC", "BHLNC"], "is not block-compact")


def test_no_block_outermost_candidate():
    error = failure([["LBNHC", "LHBNC"]], [FULL, REPLICATED])
    assert rules(error.steps)[-2:] == ["mixed-specs", "dcp"]
    assert error.value == ["LBNHC"]
    assert "hold no block-outermost layout" in str(error)
    assert "from 8,192 to 65,536 bytes" in str(error)


def test_a_request_that_an_earlier_rule_dropped():
    error = failure([["LBNHC", "LHBNC"]], [FULL, WIDE], requested="LHBNC")
    assert (error.argument, error.value) == ("requested", "LHBNC")
    assert ("VLLM_KV_CACHE_LAYOUT must be one of the candidates LBNHC; LHBNC is not block-compact (mixed-specs)"
            in str(error))
    assert error.steps[-1].sentence == str(error).removesuffix(" Ask for a candidate, or unset it.")


@pytest.mark.parametrize("argument", ["pinned", "requested", "connector"])
@pytest.mark.parametrize("name", ["lbnhc", "", "BADNAME", 7])
def test_unknown_names(argument, name):
    error = failure(ALL, [FULL], **{argument: name})
    assert (error.argument, error.value) == (argument, name)
    assert "is not a KV cache layout" in str(error)
    assert error.steps[-1].rule == argument


def test_an_unknown_name_in_a_report():
    error = failure([["LBNHC", "XYZ"]], [FULL])
    assert (error.argument, error.value) == ("supported_layouts", "XYZ")


@pytest.mark.parametrize("reports", ["LBNHC", ["LBNHC", "BLHNC"], 5, [[5]], [None]])
def test_malformed_reports(reports):
    with pytest.raises(LayoutError, match="must be a list of lists of layout names") as caught:
        resolve(reports, [FULL])
    assert caught.value.value == reports


def test_malformed_specs():
    with pytest.raises(LayoutError, match="must be the specs of all layers"):
        resolve(ALL, FULL)
    with pytest.raises(LayoutError, match="describes several layers"):
        resolve(ALL, [UniformTypeKVCacheSpecs(16, {"a": FULL})])
    with pytest.raises(LayoutError, match="is not a release"):
        resolve(ALL, [FULL], vllm_version="0.28.0")


def test_resolving_records_the_name(monkeypatch):
    fresh = config()
    assert resolve_kv_cache_layout(fresh, ALL, [FULL]) is KVCacheLayout.LBHNC
    assert fresh.cache_config.kv_cache_layout == "LBHNC"
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "BHLNC")
    assert resolve_kv_cache_layout(fresh, ALL, [FULL]) is KVCacheLayout.LBHNC, "recorded once, for good"
    assert resolve_kv_cache_layout(config(), ALL) is KVCacheLayout.BHLNC


def test_a_recorded_alias_stays_as_written():
    preset = config(pinned="HND")
    assert resolve_kv_cache_layout(preset, ALL) is KVCacheLayout.LBHNC
    assert preset.cache_config.kv_cache_layout == "HND"


def test_explaining_records_nothing():
    fresh = config()
    assert explain_kv_cache_layout(fresh, ALL, [FULL]).layout is KVCacheLayout.LBHNC
    assert fresh.cache_config.kv_cache_layout is None


@pytest.mark.parametrize("requested", ["", "hnd", "LHBNC"])
def test_a_bad_environment_records_nothing(requested, monkeypatch):
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", requested)
    fresh = config()
    with pytest.raises(ResolutionError) as caught:
        resolve_kv_cache_layout(fresh, [["LBNHC"]], [FULL])
    assert (caught.value.argument, caught.value.value) == ("requested", requested)
    assert fresh.cache_config.kv_cache_layout is None


def test_the_connector_is_asked_last_and_only_then(monkeypatch):
    unknown = SimpleNamespace(kv_connector="NoSuchConnector")
    assert resolve_kv_cache_layout(config(transfer=nixl()), [["LBNHC", "LBHNC"]]) is KVCacheLayout.LBHNC
    with pytest.raises(ResolutionError, match="NoSuchConnector") as caught:
        resolve_kv_cache_layout(config(transfer=unknown), ALL)
    assert caught.value.steps[-1].rule == "connector"
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "LBNHC")
    assert resolve_kv_cache_layout(config(transfer=unknown), ALL) is KVCacheLayout.LBNHC


def test_a_dropped_wish_is_logged(caplog):
    with caplog.at_level(logging.WARNING):
        assert resolve_kv_cache_layout(config(transfer=nixl()), [["LBNHC"]]) is KVCacheLayout.LBNHC
        assert resolve_kv_cache_layout(config(transfer=nixl()), [["LBNHC", "LBHNC"]]) is KVCacheLayout.LBHNC
    assert [record.getMessage() for record in caplog.records] == [
        "The connector wishes for LBHNC, which is not a candidate: not every backend supports LBHNC. "
        "Its wish is dropped."]


def test_a_config_without_a_place_to_record():
    with pytest.raises(LayoutError, match=r"vllm_config\.cache_config=None: must be there"):
        resolve_kv_cache_layout(SimpleNamespace(), ALL)


def test_recording_is_write_once():
    cache = SimpleNamespace(kv_cache_layout=None)
    record_kv_cache_layout(cache, "HND")
    assert cache.kv_cache_layout == "LBHNC"
    record_kv_cache_layout(cache, "LBHNC")
    with pytest.raises(LayoutConflict, match="layout_name='BLHNC': conflicts with LBHNC, which is recorded already"):
        record_kv_cache_layout(cache, "BLHNC")
    assert cache.kv_cache_layout == "LBHNC"


def test_a_preset_alias_conflicts_with_its_own_meaning():
    with pytest.raises(LayoutConflict, match="conflicts with HND"):
        record_kv_cache_layout(SimpleNamespace(kv_cache_layout="HND"), "LBHNC")


@pytest.mark.parametrize("name", ["lbnhc", "", None, "HBLNC", PhysicalLayout("HBLNC")])
def test_recording_an_unknown_name_records_nothing(name):
    cache = SimpleNamespace(kv_cache_layout=None)
    with pytest.raises(LayoutError) as caught:
        record_kv_cache_layout(cache, name)
    assert caught.value.argument == "layout_name"
    assert cache.kv_cache_layout is None


def test_reading_the_recorded_layout():
    assert get_resolved_kv_cache_layout(SimpleNamespace(kv_cache_layout="HND")) is KVCacheLayout.LBHNC
    with pytest.raises(LayoutError, match="is not resolved yet"):
        get_resolved_kv_cache_layout(SimpleNamespace(kv_cache_layout=None))
    with pytest.raises(LayoutError, match=r"cache_config\.kv_cache_layout='hnd'"):
        get_resolved_kv_cache_layout(SimpleNamespace(kv_cache_layout="hnd"))
