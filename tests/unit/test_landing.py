"""Bytes written where slots say are a landing without findings; written elsewhere, they are found."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.landing import land
from kvlayout.slot_mapping import Prediction, predict, slots_of
from kvlayout.snapshot import Changes, Snapshot, changed, digest, salts
from kvlayout.spec import AttentionSpec
from tests.strategies import maps, transposed_cell

SPEC = kv.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="bfloat16")
GROUPS = (kv.KVCacheGroupSpec(["a", "b"], SPEC), kv.KVCacheGroupSpec(["c", "d"], SPEC))


def make_map(layout="LBHNC", blocks=6, groups=GROUPS, **options) -> kv.AddressMap:
    return kv.AddressMap(kv.get_kv_cache_config_from_groups(groups, 0, layout, num_gpu_blocks_override=blocks),
                         **options)


def snapshot(data: np.ndarray, granule=64, held=None) -> Snapshot:
    """A snapshot of bytes; ``held`` granules are kept as they are, others digested; None keeps all."""
    padded = np.concatenate([data, np.zeros(-len(data) % granule, np.uint8)]).reshape(-1, granule)
    numbers = np.flatnonzero(padded.any(axis=1))
    kept = numbers if held is None else numbers[np.isin(numbers, held)]
    rest = np.setdiff1d(numbers, kept)
    return Snapshot(len(data), granule, kept, padded[kept], rest,
                    digest(padded[rest].view(np.int64), salts(granule)))


def write(data: np.ndarray, address_map: kv.AddressMap, prediction, add=1) -> None:
    """Change every byte of the predicted states, one by one."""
    cells = prediction.cells(address_map)
    for layer, block, head, state in zip(*cells.values()):
        content = address_map.shape(int(layer))[3]
        data[address_map.offset(int(layer), block, head, state, np.arange(content))] += add


def buffer(address_map: kv.AddressMap, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, address_map.size_bytes, dtype=np.uint8)


@st.composite
def scenes(draw):
    """A map, and slots (or blocks of states) that each group is to write, no block in two groups."""
    address_map = draw(maps())
    predictions, free = [], list(range(1, address_map.config.num_blocks))
    sizes = address_map.kernel_block_sizes or [None] * len(address_map.config.kv_cache_groups)
    for index, group in enumerate(address_map.config.kv_cache_groups):
        spec = next(iter(group.layer_specs.values()))
        same = {(s.num_states, s.block_size, getattr(s, "tokens_per_state", 0)) for s in group.layer_specs.values()}
        mine = [block for block in free if draw(st.booleans())]
        free = [block for block in free if block not in mine]
        if not mine or len(same) > 1:
            continue
        if isinstance(spec, AttentionSpec):
            slots = [block * spec.block_size + row for block in mine for row in range(spec.block_size)]
            predictions.append(predict(address_map, index, draw(st.lists(st.sampled_from(slots), min_size=1))))
        else:
            ratio = spec.block_size // (sizes[index] or spec.block_size)
            assume(ratio == 1)
            predictions.append(predict(address_map, index, blocks=mine))
    return address_map, predictions


@settings(max_examples=150)
@given(scenes(), st.integers(0, 3))
def test_what_is_written_by_the_map_lands_as_predicted(scene, seed):
    address_map, predictions = scene
    before = buffer(address_map, seed)
    after = before.copy()
    for one in predictions:
        write(after, address_map, one)
    landing = land(address_map, changed(snapshot(before), snapshot(after)), predictions)
    assert landing.ok, landing.findings
    assert len(landing.missing) == len(landing.unexpected) == landing.outside_bytes == 0
    assert landing.stray_bytes.sum() == 0
    assert landing.changed_bytes.sum() == (before != after).sum() == landing.predicted_bytes.sum()


@settings(max_examples=150)
@given(scenes(), st.data())
def test_one_byte_that_nobody_predicted_is_found_where_it_is(scene, data):
    address_map, predictions = scene
    before = buffer(address_map)
    after = before.copy()
    for one in predictions:
        write(after, address_map, one)
    untouched = np.flatnonzero(before == after)
    assume(len(untouched))
    offset = int(data.draw(st.sampled_from(untouched.tolist())))
    after[offset] ^= 255
    owners = list(address_map.owners(offset))
    landing = land(address_map, changed(snapshot(before), snapshot(after)), predictions)
    rules = {finding.rule for finding in landing.findings}
    if not owners:
        assert landing.outside_bytes == 1 and not landing.ok
    elif all(owner.block * (address_map.region(owner.layer).geometry.shape[1] == address_map.config.num_blocks) == 0
             for owner in owners) and "null-block" in rules:
        assert landing.changed.sum() > 0
    else:
        undeclared = ~landing.is_declared[landing.predicted].all()
        assert rules & {"cell-unexpected", "interior-contradiction", "outside"} or undeclared or "null-block" in rules


def test_a_transposed_cell_contradicts_the_default_interior_but_not_its_own():
    declared = {name: transposed_cell(SPEC) for name in "abcd"}
    real, assumed = make_map(interiors=declared), make_map()
    before = buffer(real)
    after = before.copy()
    write(after, real, predict(real, 0, np.arange(20, 25)))
    changes = changed(snapshot(before), snapshot(after))
    assert land(real, changes, [predict(real, 0, np.arange(20, 25))]).ok
    wrong = land(assumed, changes, [predict(assumed, 0, np.arange(20, 25))])
    (finding,) = [one for one in wrong.findings if one.is_error]
    # By layout alone the cells agree: only the inside doesn't.
    assert finding.rule == "interior-contradiction" and len(wrong.missing) == len(wrong.unexpected) == 0
    assert finding.numbers["cells"] == 4 and finding.coordinate == {"layer": "a", "block": 1, "head": 0, "state": 0}
    assert finding.numbers["stray_bytes"] == wrong.stray_bytes.sum() > 0
    assert "K, V inside one state" in finding.message


def test_the_wrong_group_or_layer_is_found_by_cell():
    address_map = make_map()
    before = buffer(address_map)
    after = before.copy()
    write(after, address_map, predict(address_map, 0, np.arange(32, 48)))
    changes = changed(snapshot(before), snapshot(after))
    landing = land(address_map, changes, [predict(address_map, 0, np.arange(48, 64))])
    assert {one.rule for one in landing.findings} == {"cell-missing", "cell-unexpected"}
    assert landing.blocks.tolist() == [2, 3]
    assert landing.matrix("predicted").tolist() == [[0, 2], [0, 2], [0, 0], [0, 0]]
    assert landing.matrix().tolist() == [[1024, 0], [1024, 0], [0, 0], [0, 0]]
    assert landing.matrix(blocks=np.array([2])).tolist() == [[1024], [1024], [0], [0]]
    assert "4 missing, 4 unexpected" in landing.summary


def test_a_block_that_two_groups_had_one_after_the_other():
    address_map = make_map()
    before = np.zeros(address_map.size_bytes, np.uint8)
    after = before.copy()
    first, second = predict(address_map, 0, np.arange(16, 20)), predict(address_map, 1, np.arange(20, 32))
    write(after, address_map, first)
    write(after, address_map, second)
    changes = changed(snapshot(before), snapshot(after))
    assert land(address_map, changes, [first, second]).ok
    assert not land(address_map, changes, [first]).ok


def test_the_null_block_is_a_remark():
    address_map = make_map()
    before = buffer(address_map)
    after = before.copy()
    prediction = predict(address_map, 0, [-1, 3, 16])
    assert (prediction.block.tolist(), prediction.state.tolist(), prediction.null_slots) == ([1], [0], 1)
    write(after, address_map, prediction)
    after[address_map.offset("a", 0)] ^= 1
    landing = land(address_map, changed(snapshot(before), snapshot(after)), [prediction])
    assert landing.ok and [one.rule for one in landing.findings] == ["null-block"]


def test_digests_show_the_cell_but_not_the_bytes():
    address_map = make_map(blocks=40)
    before = buffer(address_map)
    after = before.copy()
    prediction = predict(address_map, 0, [37])
    write(after, address_map, prediction)
    changes = changed(snapshot(before, held=[]), snapshot(after))
    assert not changes.is_exact and len(changes.granules) == 2 * 2
    landing = land(address_map, changes, [prediction])
    assert landing.ok and not landing.is_exact.all() and [one.rule for one in landing.findings] == ["digest-only"]
    elsewhere = land(address_map, changes, [predict(address_map, 0, [200])])
    assert {one.rule for one in elsewhere.findings} >= {"cell-missing", "cell-unexpected", "digest-only"}


@settings(max_examples=60)
@given(st.integers(1, 500), st.data())
def test_changed_bytes_are_exactly_those_that_differ(size, data):
    numbers = np.random.default_rng(data.draw(st.integers(0, 99)))
    before = numbers.integers(0, 3, size).astype(np.uint8) * (numbers.random(size) < data.draw(st.floats(0, 1)))
    before = before.astype(np.uint8)
    after = before.copy()
    for offset in data.draw(st.lists(st.integers(0, size - 1))):
        after[offset] += 1
    first, second = snapshot(before, 8), snapshot(after, 8)
    changes = changed(Snapshot.from_dict(first.to_dict()), second)
    assert np.concatenate([np.zeros(0, int), *changes.offsets()]).tolist() == np.flatnonzero(before != after).tolist()
    assert changes.at(np.arange(size)).tolist() == (before != after).tolist()
    digested = changed(snapshot(before, 8, held=data.draw(st.lists(st.integers(0, 60)))), second)
    assert digested.granules.tolist() == np.unique(np.flatnonzero(before != after) // 8).tolist()
    assert not digested.is_exact_at(digested.granules[~digested.exact] * 8).any()


def test_slots_follow_the_block_table_and_leave_out_the_null_block():
    assert slots_of([0, 5, 2], [3, 16, 33], 16).tolist() == [-1, 80, 33]
    for positions in ([48], [-1]):
        with pytest.raises(kv.LayoutError, match="positions"):
            slots_of([0, 5, 2], positions, 16)


def test_kernel_blocks_and_shared_states_are_counted():
    split = make_map("LBNHC", groups=GROUPS[:1], kernel_block_sizes=[4])
    assert predict(split, 0, [16 + 5]).block.tolist() == [5] and predict(split, 0, [16 + 5]).state.tolist() == [1]
    pooled = kv.FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16", tokens_per_state=4)
    found = predict(make_map(groups=[kv.KVCacheGroupSpec(["p"], pooled)]), 0, [16, 17, 20])
    assert (found.block.tolist(), found.state.tolist()) == ([1, 1], [0, 1])
    halves = kv.FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="bfloat16", tokens_per_state="1/2")
    found = predict(make_map(groups=[kv.KVCacheGroupSpec(["h"], halves)]), 0, [5])
    assert (found.block.tolist(), found.state.tolist()) == ([1, 1], [2, 3])


@pytest.mark.parametrize(("call", "argument"), [
    (lambda: predict(make_map(), 0, [96]), "slots"),
    (lambda: predict(make_map(), 2, [1]), "group"),
    (lambda: predict(make_map(), 0), "slots"),
    (lambda: predict(make_map(), 0, blocks=[6]), "blocks"),
    (lambda: predict(make_map(groups=[kv.KVCacheGroupSpec(["m"], kv.MambaSpec(16, ((4,),), ("int8",)))]), 0, [1]),
     "slots"),
    (lambda: changed(snapshot(np.zeros(8, np.uint8)), snapshot(np.zeros(9, np.uint8))), "after"),
    (lambda: Snapshot(8, 12, *[np.zeros(0, np.int64)] * 4), "granule_bytes"),
])
def test_bad_input_names_its_argument(call, argument):
    with pytest.raises(kv.LayoutError) as caught:
        call()
    assert caught.value.argument == argument


def test_nothing_changed_is_said_of_every_cell():
    address_map = make_map()
    none = np.zeros(0, np.int64)
    nothing = Changes(address_map.size_bytes, 64, none, np.zeros((0, 8), np.uint8), np.zeros(0, bool))
    landing = land(address_map, nothing, [predict(address_map, 1, [16])])
    assert [one.rule for one in landing.findings] == ["cell-missing"] and len(landing.missing) == 4
    assert land(address_map, nothing, []).ok


def landing_of(address_map):
    data = buffer(address_map)
    before = snapshot(data)
    wanted = predict(address_map, 0, [50, 17])
    write(data, address_map, wanted)
    return changed(before, snapshot(data)), wanted


def test_a_matrix_has_the_columns_in_the_order_that_was_asked_for():
    address_map = make_map()
    changes, wanted = landing_of(address_map)
    landing = land(address_map, changes, [wanted])
    sorted_columns = landing.matrix(blocks=[0, 1, 2, 3])
    assert sorted_columns[:2, [1, 3]].all() and not sorted_columns[:, [0, 2]].any()
    for order in ([3, 2, 1, 0], [3, 3, 1], [2, 1, 5]):
        known = [block for block in order if block < 4]
        np.testing.assert_array_equal(landing.matrix(blocks=order)[:, [order.index(b) for b in known]],
                                      sorted_columns[:, known])
    with pytest.raises(kv.LayoutError, match="what='summary'"):
        landing.matrix("summary")


@pytest.mark.parametrize("argument, options", [
    ("predictions", {"predictions": Prediction(0, np.array([0]), np.array([1]), np.array([0]))}),
    ("predictions", {"predictions": ["no"]}),
    ("block", {"predictions": [Prediction(0, np.array([0]), np.array([99]), np.array([0]))]}),
    ("state", {"predictions": [Prediction(0, np.array([0]), np.array([1]), np.array([16]))]}),
    ("layer", {"predictions": [Prediction(0, np.array([9]), np.array([1]), np.array([0]))]}),
    ("rewritten", {"rewritten": np.array([1, 2])}),
    ("head", {"rewritten": np.array([[0, 1, 9, 0]])}),
    ("changes", {"changes": changed(snapshot(np.zeros(99, np.uint8)), snapshot(np.ones(99, np.uint8)))}),
])
def test_what_is_of_another_cache_is_refused(argument, options):
    address_map = make_map()
    changes, wanted = landing_of(address_map)
    merged = {"changes": changes, "predictions": [wanted], **options}
    with pytest.raises(kv.LayoutError) as caught:
        land(address_map, merged.pop("changes"), merged.pop("predictions"), **merged)
    assert caught.value.argument == argument
