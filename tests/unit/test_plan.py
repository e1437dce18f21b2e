"""Plans from selections: every preset, the resolver's say, ranks, kernel blocks and a user's own backend."""

import pytest

import kvlayout as kv
from kvlayout.plan import preferred_block_size
from kvlayout.versions import VLLM_VERSIONS

NAMES = [*kv.presets()]


def plan(**choices) -> kv.Plan:
    return kv.make_plan(kv.Selection(**choices))


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_planned_on_every_release(name):
    for version in VLLM_VERSIONS:
        made = plan(model=name, vllm_version=version, num_blocks=3)
        config = made.config
        assert config.num_blocks == 3 and config.kv_cache_layout == made.layout.name
        assert config.size_bytes == 3 * made.bytes_per_block
        assert {n for g in made.groups for n in g.layer_names} == set(made.specs)
        assert made.address_map.end_of_use <= config.size_bytes
        assert all(overlap.is_legal for overlap in made.address_map.overlaps())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", kv.KVCacheLayout.__members__)
def test_a_forced_layout_is_taken_or_refused_with_a_reason(name, layout):
    try:
        made = plan(model=name, layout=layout, num_blocks=2)
    except kv.LayoutError as error:
        assert "express" in error.rule or "pad pages" in error.rule
        assert layout in ("LHBNC", "BHLNC")
        return
    assert made.layout.name == layout
    assert [step.rule for step in made.resolution.steps][-1] == "pinned"


def test_figures_of_the_models_that_people_know():
    small = plan(model="Qwen/Qwen3-0.6B", layout="BLNHC", num_blocks=11_632)
    assert small.bytes_per_block == 1_835_008
    assert small.address_map.offset("model.layers.12.self_attn.attn", 37) == 68_681_728
    hybrid = plan(model="Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert {g.kv_cache_spec.block_size for g in hybrid.groups} == {544}
    assert plan(model="deepseek-ai/DeepSeek-V3").bytes_per_block == 61 * 16 * 576 * 2


def test_memory_is_filled_with_whole_blocks():
    made = plan(available_memory=1 << 30)
    assert made.config.num_blocks == (1 << 30) // made.bytes_per_block
    assert plan(available_memory=1000).config.num_blocks == 0
    assert plan(available_memory=1000).address_map.size_bytes == 0


def test_stages_share_the_smallest_block_count():
    # 28 layers in 3 stages are 9, 10 and 9 (or alike): the largest stage has the fewest blocks.
    stages = [plan(pp_size=3, pp_rank=rank, available_memory=1 << 30) for rank in range(3)]
    assert sum(len(stage.config.layer_specs) for stage in stages) == 28
    largest = max(stages, key=lambda stage: stage.bytes_per_block)
    assert {stage.config.num_blocks for stage in stages} == {(1 << 30) // largest.bytes_per_block}


def test_ranks_replicate_heads():
    assert plan(tp_size=8).groups[0].kv_cache_spec.num_kv_heads == 1
    assert plan(tp_size=16).groups[0].kv_cache_spec.num_kv_heads == 1
    with pytest.raises(kv.LayoutError) as error:
        plan(tp_size=3)
    assert error.value.argument == "tp_size"


def test_the_request_wins_over_the_connector_and_the_connector_over_the_default():
    assert plan().layout.name == "LBNHC"
    wished = plan(connector="NixlConnector")
    assert wished.layout.name == "LBHNC" and wished.resolution.steps[-1].rule == "connector"
    assert plan(connector="NixlConnector", requested="BLNHC").layout.name == "BLNHC"


def test_a_refused_request_carries_the_steps():
    with pytest.raises(kv.ResolutionError) as error:
        plan(backend="CPU_ATTN", requested="BLNHC")
    assert [step.rule for step in error.value.steps] == ["workers-agree", "requested"] or \
        error.value.steps[-1].rule == "requested"
    assert "LBHNC" in str(error.value) + " ".join(error.value.steps[-1].before)


def test_the_steps_begin_with_the_backends():
    steps = plan(backend="CPU_ATTN").resolution.steps
    assert steps[0].rule == "backends-support"
    assert set(steps[0].dropped) == {"LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"}
    assert all("CPU_ATTN" in reason for reason in steps[0].dropped.values())
    for before, after in zip(steps, steps[1:]):
        assert before.after == after.before


def test_kernel_blocks_are_vllms_unless_chosen():
    made = plan(model="Qwen/Qwen3-0.6B", layout="LBNHC", backend="FLASHINFER", block_size=128)
    assert made.kernel_block_sizes == (64,)
    assert made.address_map.shape(0)[:1] == (128,)
    assert plan(layout="LBNHC", block_size=64, kernel_block_size=16).address_map.shape(0)[2] == 16
    with pytest.raises(kv.LayoutError) as error:
        plan(layout="BLNHC", block_size=64, kernel_block_size=16)
    assert error.value.argument == "kernel_block_size"


def test_the_block_size_is_what_the_backend_prefers():
    assert preferred_block_size(kv.get_backend("FLASH_ATTN")) == 16
    assert preferred_block_size(kv.get_backend("FLASHMLA")) == 64
    assert plan(model="deepseek-ai/DeepSeek-V3", backend="FLASHMLA").groups[0].kv_cache_spec.block_size == 64


class Mine:
    """A user's backend: block-outermost only, and K, V and two fp32 scales packed a head."""

    @staticmethod
    def supported_kv_cache_layouts():
        return (kv.KVCacheLayout.BLHNC, kv.KVCacheLayout.BLNHC)

    @staticmethod
    def get_supported_kernel_block_sizes():
        return [kv.MultipleOf(32)]

    @staticmethod
    def customize_spec(spec):
        from dataclasses import replace
        return replace(spec, dtype="int8", state_content_bytes=2 * spec.head_size + 8)


def test_a_backend_of_the_users():
    made = kv.make_plan(kv.Selection(backend="Mine", num_blocks=2), backends=[Mine])
    assert made.layout.name == "BLHNC"
    assert made.groups[0].kv_cache_spec.block_size == 32
    assert made.address_map.shape(0) == (2, 8, 32, 264)
    assert "Mine" in made.resolution.steps[0].dropped["LBNHC"]
    with pytest.raises(kv.LayoutError, match="Mine"):
        kv.make_plan(kv.Selection(backend="Mine"))


def test_the_machine_decides_what_a_backend_declares():
    assert plan(backend="FLASHINFER").layout.name == "LBNHC"
    blackwell = kv.Machine(platform="cuda", cuda_major=10)
    assert plan(backend="FLASHINFER", machine=blackwell).layout.name == "LBHNC"
    assert kv.Selection.from_json('{"machine": {"platform": "cuda", "cuda_major": 10}}').machine == blackwell
    with pytest.raises(kv.LayoutError, match="cuda_mayor"):
        kv.Selection.from_json('{"machine": {"cuda_mayor": 10}}')


def test_selections_round_trip():
    for choices in [{}, {"machine": kv.Machine(platform="rocm", cdna_version=3)},
                    {"model": "llama-tiny", "layout": "BLNHC"}, {"available_memory": 5, "tp_size": 2, "pp_rank": 0},
                    {"model": {"model_type": "llama", "hidden_size": 64}}]:
        selection = kv.Selection(**choices)
        assert kv.Selection.from_json(selection.to_json()) == selection
        assert kv.Selection.from_dict(selection.to_dict()) == selection
