"""The judge against real vLLM: plans agree, and doctored plans don't."""

import json
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.address import AddressMap
from kvlayout.captured import captured_selection
from kvlayout.errors import LayoutError
from kvlayout.facts.connectors import connector_names
from kvlayout.upstream.background import Judge
from kvlayout.upstream.judge import judge, judge_selection, reproducer
from kvlayout.upstream.release import Release, load
from kvlayout.upstream.verdict import Verdict
from kvlayout.versions import VLLM_VERSIONS
from tests.strategies import configs

pytestmark = [pytest.mark.vllm,
              # torch's and vLLM's own imports warn of what they themselves use.
              pytest.mark.filterwarnings("default"),
              pytest.mark.filterwarnings("ignore::DeprecationWarning:flashinfer.*")]

CHECKS = ["specs", "backends", "resolution", "groups", "placement", "kernel block sizes", "strides", "views", "omni"]
LAYOUTS = [None, *kv.KVCacheLayout.__members__]


@pytest.fixture(scope="module")
def release() -> Release:
    return load()


def plan_of(release: Release, **choices) -> kv.Plan:
    return kv.make_plan(kv.Selection(vllm_version=release.rules, **choices))


def agrees(plan: kv.Plan) -> Verdict:
    verdict = judge(plan)
    assert verdict.ok, [check.sentence for check in verdict.checks if check.ok is False]
    assert [check.name for check in verdict.checks if check.name != "vllm_version"] == CHECKS
    left = {check.name: check.reason for check in verdict.not_judged}
    assert all(left.values()), left
    return verdict


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", kv.presets())
def test_every_preset_agrees_in_every_layout(release, model, layout):
    judged = 0
    for more in ({}, {"tp_size": 2, "available_memory": 1 << 30}, {"kv_cache_dtype": "fp8", "num_blocks": 1}):
        try:
            plan = plan_of(release, model=model, layout=layout, **more)
        except LayoutError as error:
            assert error.rule
            continue
        verdict = agrees(plan)
        assert {check.name for check in verdict.not_judged} <= {"backends", "omni", "vllm_version"}
        assert verdict.compared > 40
        judged += 1
    # Padded pages can't lie in layouts with heads outside the block or the layer.
    assert judged or layout in ("LHBNC", "BHLNC")


@pytest.mark.parametrize("backend", ["FLASHINFER", "TRITON_ATTN", "CPU_ATTN", "ROCM_ATTN", "FLEX_ATTENTION",
                                     "TURBOQUANT", "FLASH_ATTN_DIFFKV"])
@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "google/gemma-3-27b-it", "Qwen/Qwen3-Next-80B-A3B-Instruct"])
def test_backends_agree_in_every_dtype_that_they_take(release, model, backend):
    judged = 0
    for dtype in ("auto", "fp8", "int8_per_token_head", "nvfp4", "turboquant_4bit_nc"):
        for block_size in (None, 64):
            try:
                plan = plan_of(release, model=model, backend=backend, kv_cache_dtype=dtype, block_size=block_size)
            except LayoutError as error:
                assert error.rule
                continue
            agrees(plan)
            judged += 1
    assert judged


@pytest.mark.parametrize("choices", [
    {"pp_size": 3, "pp_rank": rank, "available_memory": 3 << 30} for rank in range(3)] + [
    {"pp_size": 2, "pp_rank": 1, "model": "google/gemma-3-27b-it", "disable_hybrid_kv_cache_manager": True},
    {"requested": "BLHNC"}, {"requested": "HND", "layout": None}, {"layout": "NHD"},
    {"kernel_block_size": 16, "block_size": 64}, {"available_memory": 1000}, {"num_blocks": 0},
    {"model": "Qwen/Qwen3-Next-80B-A3B-Instruct", "kernel_block_size": 272},
    {"max_model_len": 512, "model": "nvidia/Nemotron-H-8B-Base-8K"}, {"num_blocks": 3_000_000}])
def test_every_kind_of_choice_agrees(release, choices):
    agrees(plan_of(release, **choices))


def test_connectors_agree_on_their_wish(release):
    for connector in connector_names(release.rules):
        for model in ("Qwen/Qwen3-0.6B", "deepseek-ai/DeepSeek-V3"):
            verdict = agrees(plan_of(release, model=model, connector=connector))
            resolution = next(check for check in verdict.checks if check.name == "resolution")
            assert resolution.ok or connector in resolution.reason


def doctored(plan: kv.Plan, **changes) -> kv.Plan:
    """The plan with fields of its first tensor replaced."""
    first, *rest = plan.config.kv_cache_tensors
    return replace(plan, config=replace(plan.config, kv_cache_tensors=(replace(first, **changes), *rest)))


@pytest.mark.parametrize("field", ["size", "layer_stride", "block_stride", "offset"])
@pytest.mark.parametrize("layout", ["LBNHC", "BLHNC"])
@pytest.mark.parametrize("by", [1, -1, 4096])
def test_a_wrong_number_of_a_tensor_is_red_with_both_numbers(release, field, layout, by):
    plan = plan_of(release, layout=layout, num_blocks=9)
    right = getattr(plan.config.kv_cache_tensors[0], field)
    wrong = abs(right + by)
    verdict = judge(doctored(plan, **{field: wrong}))
    first = verdict.first
    assert not verdict.ok and first.name == "placement"
    assert (first.where, first.ours, first.theirs) == (f"kv_cache_tensors[0].{field}", wrong, right)
    assert f"{right:,}" in verdict.summary and f"{wrong:,}" in verdict.summary
    # The rest is vLLM's own way, untouched by our mistake.
    assert [check.name for check in verdict.checks if check.ok is False] == ["placement"]


def wrong_layout(plan):
    other = kv.KVCacheLayout.LBHNC if plan.layout is not kv.KVCacheLayout.LBHNC else kv.KVCacheLayout.BLHNC
    return replace(plan, resolution=replace(plan.resolution, layout=other))


def wrong_spec(plan):
    name, spec = next(iter(plan.specs.items()))
    larger = replace(spec, page_size_padded=spec.page_size_bytes + 4096)
    # Our class computes the larger page; the plan goes on with the old one.
    return replace(plan, specs={**plan.specs, name: larger})


def wrong_groups(plan):
    first, *rest = plan.groups
    return replace(plan, groups=(replace(first, layer_names=first.layer_names[::-1]), *rest))


def wrong_blocks(plan):
    return replace(plan, config=replace(plan.config, num_blocks=plan.config.num_blocks + 1))


def wrong_kernel_blocks(plan):
    return replace(plan, kernel_block_sizes=(plan.kernel_block_sizes[0] // 2, *plan.kernel_block_sizes[1:]))


def wrong_map(plan):
    """An address map whose views start elsewhere: the layers of the first tensor in another order."""
    first, *rest = plan.config.kv_cache_tensors
    config = replace(plan.config, kv_cache_tensors=(replace(first, layers=first.layers[::-1]), *rest))
    return replace(plan, address_map=AddressMap(config, plan.layout, plan.kernel_block_sizes))


@pytest.mark.parametrize(("doctor", "name"), [
    (wrong_layout, "resolution"), (wrong_groups, "groups"), (wrong_blocks, "placement"),
    (wrong_kernel_blocks, "kernel block sizes"), (wrong_map, "views"), (wrong_spec, "groups")])
@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "google/gemma-3-27b-it"])
def test_whatever_is_wrong_in_a_plan_is_red(release, model, doctor, name):
    plan = plan_of(release, model=model)
    assert judge(plan).ok
    verdict = judge(doctor(plan))
    assert not verdict.ok
    wrong = [check for check in verdict.checks if check.ok is False]
    assert name in [check.name for check in wrong]
    assert all(check.ours != check.theirs and check.where for check in wrong)


def test_a_wrong_size_of_ours_is_red_in_specs(release, monkeypatch):
    plan = plan_of(release)
    right = next(iter(plan.specs.values())).page_size_bytes
    monkeypatch.setattr(type(next(iter(plan.specs.values()))), "page_size_bytes", right + 2)
    first = judge(plan).first
    assert (first.name, first.ours, first.theirs) == ("specs", right + 2, right)
    assert first.where.endswith(".page_size_bytes")


def test_strides_of_ours_that_are_wrong_are_red(release):
    plan = plan_of(release, layout="LBNHC")
    other = plan_of(release, layout="LBHNC")
    verdict = judge(replace(plan, address_map=other.address_map))
    assert [check.name for check in verdict.checks if check.ok is False] == ["strides", "views"]
    assert "strides" in verdict.first.where


def test_what_vllm_refuses_is_red_with_its_words(release):
    plan = plan_of(release, model="google/gemma-3-27b-it")
    name, spec = next(iter(plan.specs.items()))
    # Two page shapes that don't fit a layout with heads outside: our plan of one shape, vLLM asked with two.
    mixed = replace(plan, specs={**plan.specs, name: replace(spec, num_kv_heads=spec.num_kv_heads + 1)},
                    selection=replace(plan.selection, layout="LHBNC"),
                    resolution=replace(plan.resolution, layout=kv.KVCacheLayout.LHBNC))
    verdict = judge(mixed)
    refused = [check for check in verdict.checks if check.ok is False and "Error" in str(check.theirs)]
    assert refused and "LHBNC" in refused[0].theirs
    after = [check for check in verdict.checks if "builds on" in check.reason]
    assert after and all(check.ok is None and refused[0].name in check.reason for check in after)


def test_a_reproducer_says_where_and_its_selection_can_be_judged(release):
    plan = plan_of(release, num_blocks=9)
    data = json.loads(json.dumps(reproducer(doctored(plan, block_stride=1), judge(doctored(plan, block_stride=1)))))
    assert data["check"]["where"] == "kv_cache_tensors[0].block_stride"
    assert judge_selection(data["selection"]).ok
    with pytest.raises(LayoutError, match="NOPE"):
        judge_selection({"backend": "NOPE"})


def test_another_release_is_judged_as_the_installed_one_and_says_so(release):
    for version in VLLM_VERSIONS:
        verdict = judge_selection(kv.Selection(vllm_version=version, model="openai/gpt-oss-20b"))
        assert verdict.ok, verdict.summary
        assert verdict.vllm_version == release.version
        named = [check.reason for check in verdict.not_judged if check.name == "vllm_version"]
        assert len(named) == (version != release.version)
        assert all(version in reason and release.version in reason for reason in named)


def test_a_captured_config_is_judged_as_it_lies(release):
    for layout in kv.KVCacheLayout.__members__:
        plan = plan_of(release, layout=layout, num_blocks=9)
        captured = captured_selection(plan.config, vllm_version=release.rules)
        verdict = judge_selection(captured)
        assert verdict.ok, verdict.summary
        left = {check.name for check in verdict.not_judged}
        assert {"resolution", "groups", "kernel block sizes", "backends"} <= left
        assert not {"specs", "strides", "views"} & left
        assert ("placement" in left) == (release.rules != release.version)
        wrong = captured_selection(doctored(plan, offset=4096, size=plan.config.size_bytes + 4096).config,
                                   vllm_version=release.rules)
        assert judge_selection(wrong).first.name == "placement"


def test_a_backend_of_ones_own_is_judged_with_what_it_declares(release):
    class Mine:
        @staticmethod
        def supported_kv_cache_layouts():
            return (kv.KVCacheLayout.LHBNC, kv.KVCacheLayout.LBHNC)

        @staticmethod
        def get_supported_kernel_block_sizes():
            return [8, 16]

    other = next(version for version in VLLM_VERSIONS if version != release.rules)
    for version in (release.rules, other):
        selection = kv.Selection(backend="Mine", block_size=48, layout="LBHNC", vllm_version=version)
        plan = kv.make_plan(selection, backends=[Mine])
        verdict = judge(plan)
        assert verdict.ok, verdict.summary
        assert plan.layout is kv.KVCacheLayout.LBHNC and plan.kernel_block_sizes == (16,)
        assert "Mine is a class of yours" in " ".join(check.reason for check in verdict.not_judged)


quick = settings(max_examples=150, suppress_health_check=list(HealthCheck))


@st.composite
def selections(draw) -> dict:
    """Choices of every kind together; many can't be planned."""
    choices = {
        "model": draw(st.sampled_from([*kv.presets()])), "tp_size": draw(st.sampled_from([1, 1, 2, 8])),
        "layout": draw(st.sampled_from([None, None, *kv.KVCacheLayout.__members__])),
        "requested": draw(st.sampled_from([None, None, "LBNHC", "HND", "BLHNC"])),
        "connector": draw(st.sampled_from([None, None, *connector_names("0.29.0")])),
        "kv_cache_dtype": draw(st.sampled_from(["auto", "fp8", "fp8_ds_mla", "int8_per_token_head", "nvfp4"])),
        "backend": draw(st.sampled_from([None, None, *kv.backends("0.29.0")])),
        "block_size": draw(st.sampled_from([None, None, 1, 16, 48, 64, 128, 256])),
        "disable_hybrid_kv_cache_manager": draw(st.booleans()),
        draw(st.sampled_from(["num_blocks", "available_memory"])): draw(st.integers(0, 1 << 40)),
    }
    stages = draw(st.sampled_from([1, 1, 2, 5]))
    return choices | {"pp_size": stages, "pp_rank": draw(st.integers(0, stages - 1))}


@quick
@given(selections())
def test_random_selections_agree(release, choices):
    try:
        plan = plan_of(release, **choices)
    except LayoutError as error:
        assert error.rule
        return
    agrees(plan)


@quick
@given(configs())
def test_random_configs_are_judged_as_they_lie(release, config):
    selection = captured_selection(config, vllm_version=release.rules)
    verdict = judge_selection(selection)
    assert verdict.first is None, verdict.summary


def test_the_background_judge_answers_as_this_process_does(release):
    answers, selection = [], kv.Selection(model="openai/gpt-oss-20b", vllm_version=release.rules, num_blocks=5)
    with Judge() as background:
        assert background.state == "loading"
        background.ask(selection, answers.append)
        end = time.monotonic() + 300
        while not answers and time.monotonic() < end:
            time.sleep(0.1)
        assert background.state == "ready", background.reason
        assert (background.version, background.build) == (release.version, release.build)
        background.ask(kv.Selection(backend="NOPE", vllm_version=release.rules), answers.append)
        while len(answers) < 2 and time.monotonic() < end:
            time.sleep(0.1)
    assert answers[0] == judge_selection(selection)
    assert isinstance(answers[1], LayoutError) and answers[1].argument == "backend" and answers[1].value == "NOPE"
