"""Rank dumps: to JSON and back, opened as captures, checked against our plan; ranks that disagree are named."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.capture import Place, RankDump, RankView, check_rank, check_ranks, load, load_ranks
from kvlayout.captured import captured_selection
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.geometry import layer_views, view_dtype
from kvlayout.plan import make_plan
from kvlayout.spec import MambaSpec
from tests.strategies import configs

BASE = 0x7F00_0000_0000


def dump_of(config: kv.KVCacheConfig, rank: int = 0, ranks: int = 1, backends=None, **changed) -> RankDump:
    """The dump of a rank whose engine does what our plan says."""
    sizes = tuple(group.kv_cache_spec.block_size for group in config.kv_cache_groups)
    views = {}
    for region in kv.AddressMap(config, kernel_block_sizes=sizes).regions:
        for one in layer_views(region.geometry, region.tensor.layers, view_dtype(region.spec), config.size_bytes):
            begin = BASE + one.storage_offset_elements * dtype_size_bytes(one.dtype)
            views[one.layer] = (RankView(one.shape, one.stride_elements, one.dtype, begin, BASE, config.size_bytes,
                                         "cpu"),)
    names = {"cache_config": config.kv_cache_layout, "kv_cache_config": config.kv_cache_layout}
    return replace(RankDump(Place(rank, rank, ranks, world_size=ranks), "0.32.0+cpu", names, config, sizes,
                            backends or {}, kv.Machine(), views, {}), **changed)


SPEC = kv.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="bfloat16")
LAYERS = ["model.layers.0.attn", "model.layers.1.attn"]
CONFIG = kv.get_kv_cache_config_from_groups([kv.KVCacheGroupSpec(LAYERS, SPEC)], 0, "BLHNC",
                                            num_gpu_blocks_override=8)
CONFIG = replace(CONFIG, kv_cache_layout="BLHNC")


def typed(config: kv.KVCacheConfig) -> bool:
    """Whether every page can be viewed in its spec's element type."""
    try:
        dump_of(config)
    except kv.LayoutError:
        return False
    return True


@settings(max_examples=60)
@given(configs().filter(typed))
def test_an_engine_that_follows_our_plan_has_no_findings(config):
    dump = dump_of(config)
    assert check_rank(dump) == []
    assert RankDump.from_dict(json.loads(json.dumps(dump.to_dict()))) == dump
    assert make_plan(captured_selection(dump)).config == config


@settings(max_examples=60)
@given(configs().filter(typed), st.data())
def test_one_number_that_differs_is_found(config, data):
    dump = dump_of(config)
    layer = data.draw(st.sampled_from(sorted(dump.views)))
    (view,) = dump.views[layer]
    axis = data.draw(st.integers(0, 3))
    stride = tuple(step + (index == axis) for index, step in enumerate(view.stride_elements))
    shape = tuple(count + (index == axis) for index, count in enumerate(view.shape))
    for rule, other in (("view-address", replace(view, data_ptr=view.data_ptr + 4)),
                        ("view-shape", replace(view, shape=shape)),
                        ("view-stride", replace(view, stride_elements=stride)),
                        ("view-dtype", replace(view, dtype="float8_e5m2")),
                        ("view-storage", replace(view, storage_nbytes=config.size_bytes - 1))):
        if rule == "view-stride" and view.shape[axis] == 1:
            continue  # no step is taken along it
        if rule == "view-dtype" and isinstance(config.layer_specs[layer], MambaSpec):
            continue  # compared state by state
        found = check_rank(replace(dump, views={**dump.views, layer: (other,)}))
        assert rule in {one.rule for one in found} and all(one.is_error for one in found)
        first = next(one for one in found if one.rule == rule)
        assert first.coordinate["layer"] == layer and {"expected", "found"} <= set(first.numbers)


def test_a_missing_layer_and_two_layout_names_are_found():
    dump = dump_of(CONFIG, layout_names={"cache_config": "LBHNC", "kv_cache_config": "BLHNC"})
    dump = replace(dump, views={LAYERS[0]: dump.views[LAYERS[0]]})
    assert [one.rule for one in check_rank(dump)] == ["layout-name", "view-missing"]


def test_an_alias_is_no_other_layout():
    config = replace(kv.get_kv_cache_config_from_groups([kv.KVCacheGroupSpec(LAYERS, SPEC)], 0, "LBHNC",
                                                        num_gpu_blocks_override=8), kv_cache_layout="LBHNC")
    assert check_rank(dump_of(config, layout_names={"cache_config": "HND", "kv_cache_config": "LBHNC"})) == []


def test_a_latent_view_has_no_axis_of_heads():
    spec = kv.MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16")
    config = kv.get_kv_cache_config_from_groups([kv.KVCacheGroupSpec(LAYERS, spec)], 0, "LBHNC",
                                                num_gpu_blocks_override=8)
    dump = dump_of(replace(config, kv_cache_layout="LBHNC"))
    flat = {layer: (replace(view, shape=(view.shape[0], *view.shape[2:]),
                            stride_elements=(view.stride_elements[0], *view.stride_elements[2:])),)
            for layer, (view,) in dump.views.items()}
    assert check_rank(replace(dump, views=flat)) == []


def test_states_lie_behind_each_other_in_the_page():
    spec = kv.MambaSpec(16, [(2, 3), (4,)], ["bfloat16", "float32"])
    config = replace(kv.get_kv_cache_config_from_groups([kv.KVCacheGroupSpec(LAYERS, spec)], 0, "LBHNC",
                                                        num_gpu_blocks_override=8), kv_cache_layout="LBHNC")
    dump, page = dump_of(config), spec.page_size_bytes
    states = {layer: (replace(view, shape=(8, 2, 3), stride_elements=(page // 2, 3, 1), dtype="bfloat16"),
                      replace(view, shape=(8, 4), stride_elements=(page // 4, 1), dtype="float32",
                              data_ptr=view.data_ptr + 12))
              for layer, (view,) in dump.views.items()}
    assert check_rank(replace(dump, views=states)) == []
    first, second = states[LAYERS[0]]
    moved = {**states, LAYERS[0]: (first, replace(second, data_ptr=second.data_ptr + 4))}
    (found,) = check_rank(replace(dump, views=moved))
    assert found.rule == "view-address" and found.numbers["found"] - found.numbers["expected"] == 4


@pytest.mark.parametrize(("changed", "rule"), [
    ({"layout_names": {"cache_config": "LBHNC", "kv_cache_config": "LBHNC"}}, "rank-layout"),
    ({"config": replace(CONFIG, num_blocks=7)}, "rank-num-blocks"),
    ({"config": replace(CONFIG, kv_cache_groups=(kv.KVCacheGroupSpec(LAYERS[::-1], SPEC),))}, "rank-groups"),
    ({"vllm_version": "0.33.0"}, "rank-version"),
])
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_rank_that_disagrees_is_named(changed, rule, odd):
    dumps = [dump_of(CONFIG, rank, 3) for rank in range(3)]
    assert check_ranks(dumps) == []
    dumps[odd] = replace(dumps[odd], **changed)
    (found,) = check_ranks(dumps)
    assert (found.rule, found.numbers["rank"]) == (rule, odd) and f"Rank {odd}:" in found.message


def test_ranks_that_all_differ_from_the_control_plane_are_named():
    dumps = [dump_of(CONFIG, rank, 2) for rank in range(2)]
    assert [one.numbers["rank"] for one in check_ranks(dumps, "LBHNC")] == [0, 1]
    assert check_ranks(dumps, "BLHNC") == []
    with pytest.raises(kv.LayoutError, match="layout_name='XYZ'"):
        check_ranks(dumps, "XYZ")


def test_missing_and_repeated_ranks_are_found():
    dump = dump_of(CONFIG, 0, 3)
    assert [(one.rule, one.numbers["ranks"]) for one in check_ranks([dump, dump])] == [
        ("rank-missing", [1, 2]), ("rank-twice", [0])]
    assert check_ranks([]) == []


def test_files_round_trip_and_open_as_captures(tmp_path):
    backends = dict(zip(LAYERS, ("CPU_ATTN", "my.own.Backend")))
    machine = kv.Machine(cpu_isa="amx")
    dump = dump_of(CONFIG, backends=backends, machine=machine, shared={"model.layers.2.attn": LAYERS[0]})
    dump.save(tmp_path / "rank-0.json")
    assert RankDump.load(tmp_path / "rank-0.json") == dump and load_ranks(tmp_path) == [dump]
    assert load(tmp_path / "rank-0.json") == CONFIG
    plan = make_plan(captured_selection(tmp_path / "rank-0.json"))
    assert plan.selection.machine == machine and plan.selection.vllm_version == "0.32.0"
    # A backend that the catalogue doesn't have is kept in the dump, and left out of the plan.
    assert {name: one.name for name, one in plan.backends.items()} == {LAYERS[0]: "CPU_ATTN"}


@pytest.mark.parametrize(("change", "argument"), [
    (lambda data: data.pop("views"), "views"),
    (lambda data: data.update(odd=1), "odd"),
    (lambda data: data["place"].update(rank="0"), "place.rank"),
    (lambda data: data["views"][LAYERS[0]][0].update(shape=[1.5]), "views"),
    (lambda data: data["machine"].update(platform="abacus"), "machine"),
    (lambda data: data["kv_cache_config"].pop("num_blocks"), "kv_cache_config.num_blocks"),
])
def test_a_broken_dump_is_one_error_that_names_the_place(tmp_path, change, argument):
    data = dump_of(CONFIG).to_dict()
    change(data)
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps(data))
    with pytest.raises(kv.LayoutError) as caught:
        RankDump.load(path)
    assert argument in caught.value.argument and str(path) in caught.value.argument


def test_a_folder_without_dumps_is_an_error(tmp_path):
    with pytest.raises(kv.LayoutError, match="KVLAYOUT_DUMP"):
        load_ranks(tmp_path)


def test_a_dump_opens_in_the_explorer(tmp_path):
    from kvlayout_widgets import Explorer

    dump_of(CONFIG, machine=kv.Machine(cpu_isa="vec16")).save(tmp_path / "rank-0.json")
    explorer = Explorer(str(tmp_path / "rank-0.json"))
    assert explorer.plan.config == CONFIG and explorer.plan.selection.machine.cpu_isa == "vec16"
