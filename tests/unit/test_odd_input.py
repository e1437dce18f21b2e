"""Input of the wrong kind, and hostile text: one LayoutError or an answer, at once, and never a raw error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.arrays import integers
from kvlayout.capture import load, load_ranks, parse, read, save
from kvlayout.captured import captured_selection
from kvlayout.landing import land
from kvlayout.rewritten import rewritten_states
from kvlayout.slot_mapping import predict, slots_of
from kvlayout.snapshot import changed
from kvlayout.strided import StridedSet, first_shared
from kvlayout.upstream.attach import attach
from kvlayout_widgets import Explorer

SPEC = kv.FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=4, dtype="bfloat16")
GROUP = kv.KVCacheGroupSpec(["a"], SPEC)
CONFIG = kv.get_kv_cache_config_from_groups([GROUP], 0, "LBNHC", num_gpu_blocks_override=4)
MAP = kv.AddressMap(CONFIG)
ODD = [None, 3, "x", [None], {"a": 1}, object(), 1.5, b"x", [[1], [2, 3]], {1}]


def kind_of(value):
    """A test's name that is the same in every process."""
    return f"{type(value).__name__} {str(value)[:20]}" if type(value) is not object else "object"


# Each would take minutes to hours if a pattern looked at it again from every place in it.
LONG = {
    "a word": "a" * 1_000_000, "dots": "a." * 200_000, "digits": "1" * 200_000, "thousands": "1,000" * 40_000,
    "capitals": "A" * 200_000, "half a name": "KVCache" * 100_000, "spec": "Spec" * 100_000, "open": "(" * 100_000,
    "calls": "KVCacheConfig(" * 5_000, "specs": "FullAttentionSpec(" * 3_000, "quotes": "'" * 100_000,
    "keys": "'a':" * 50_000 + "KVCacheConfig(", "quoted": "> " * 200_000, "prefixes": "(pid=1) " * 50_000,
    "spaces": "  " * 100_000 + "|", "lines": "\n".join("1" * 9 for _ in range(20_000)),
    "an entity": "&#" + "9" * 5_000 + ";", "a number": f"KVCacheConfig(num_blocks={'9' * 100_000})",
}


@pytest.mark.parametrize("kind", LONG)
def test_no_text_takes_long_to_read(kind):
    assert read(LONG[kind]).config is None
    with pytest.raises(kv.LayoutError):
        parse(LONG[kind])


@settings(max_examples=200)
@given(st.sampled_from(["kv_quant_mode", "dtype", "block_size", "head_size", "sliding_window"]), st.sampled_from(
    ["[]", "{}", "Foo()", "...", "'x'", "-1", "1e400", "None", "Fraction(1, 0)", "<A.B: 3>", "[[]]", "{1: 2}"]))
def test_any_value_in_a_pasted_spec_is_read_or_explained(field, value):
    text = repr(CONFIG)
    spec = f"FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=4, dtype=torch.bfloat16, {field}={value})"
    start = text.index("kv_cache_spec=") + len("kv_cache_spec=")
    found = read(text[:start] + spec + ")], kv_cache_layout='LBNHC')")
    assert found.config is not None or found.problems


def test_counts_that_can_not_be_compared_run_by_run_are_compared_by_their_period():
    for count in (10**5, 2 * 10**8):
        even, odd = (StridedSet(start, (count, 3), (stride, 1)) for start, stride in ((0, 4096), (8, 6000)))
        assert first_shared(even, odd) is None  # all starts are multiples of 16, and 8 more
        shared = first_shared(even, StridedSet(16, (count, 3), (6000, 1)))
        assert shared is not None and shared % 4096 < 3 and (shared - 16) % 6000 < 3


@settings(max_examples=300)
@given(st.data())
def test_the_first_shared_byte_is_what_looking_at_all_finds(data):
    def draw():
        stride, count = data.draw(st.integers(2, 40)), data.draw(st.integers(1, 40))
        return StridedSet(data.draw(st.integers(0, 60)), (count, data.draw(st.integers(1, stride))), (stride, 1))

    a, b = draw(), draw()
    both = set.intersection(*({s.offset + i * s.strides[0] + j for i in range(s.extents[0]) for j in range(
        s.extents[1])} for s in (a, b)))
    found = first_shared(a, b)
    assert (found in both) if both else found is None


def test_too_many_runs_are_a_sentence():
    far = [StridedSet(0, (10**8, 1, 3), (prime, 1, 1)) for prime in (10**8 + 7, 10**8 + 37)]
    with pytest.raises(kv.LayoutError, match="too many to say whether they share a byte"):
        first_shared(*far)


@pytest.mark.parametrize("odd", [*ODD, 1e9, "17", [2**70], [np.nan], np.array([2**64 - 1], np.uint64), [True], 2j],
                         ids=kind_of)
def test_what_is_no_whole_number_is_refused_as_an_index(odd):
    for name, ask in (("slots", lambda: predict(MAP, 0, odd)), ("blocks", lambda: predict(MAP, 0, blocks=odd)),
                      ("block_table", lambda: slots_of(odd, [0], 4)), ("positions", lambda: slots_of([1], odd, 4)),
                      ("offsets", lambda: MAP.locate(odd))):
        if (odd is None or isinstance(odd, int)) and name in ("slots", "blocks", "offsets"):
            continue  # None is a default, and one number is as good as a list of one
        with pytest.raises(kv.LayoutError, match=name):
            ask()


def test_whole_numbers_keep_their_shape():
    assert integers("x", [[1, 2]]).shape == (1, 2) and integers("x", []).dtype == np.int64
    with pytest.raises(kv.LayoutError, match=r"x=\[\[1\]\].*1 axes, not 2"):
        integers("x", [[1]], ndim=1)


@pytest.mark.parametrize("odd", ODD, ids=kind_of)
def test_what_is_no_object_of_ours_is_refused_by_name(odd):
    nothing = changed_nothing()
    for ask in (lambda: land(odd, nothing, []), lambda: land(MAP, odd, []), lambda: land(MAP, nothing, odd),
                lambda: changed(odd, odd), lambda: predict(odd, 0, [1]), lambda: rewritten_states(odd, 1, 2, []),
                lambda: kv.AddressMap(odd), lambda: kv.KVCacheConfig(1, odd, ()),
                lambda: kv.KVCacheConfig(1, (), odd), lambda: kv.KVCacheTensor(4, odd, 1, 1),
                lambda: kv.KVCacheGroupSpec(odd, SPEC)):
        if isinstance(odd, dict):
            continue  # a collection of names by its keys
        with pytest.raises(kv.LayoutError):
            ask()


@pytest.mark.parametrize("odd", [*ODD, "Qwen/Qwen3-0.6B"], ids=kind_of)
def test_a_plan_asks_for_a_selection_and_a_list_of_backends(odd):
    with pytest.raises(kv.LayoutError) as refused:
        kv.make_plan(odd)
    assert refused.value.argument == "selection" and "Selection(" in refused.value.cure
    if isinstance(odd, (dict, list, tuple, set)):
        return
    for ask in (lambda: kv.make_plan(kv.Selection(), backends=odd), lambda: Explorer(backends=odd)):
        with pytest.raises(kv.LayoutError) as refused:
            ask()
        assert "backends=[" in refused.value.cure


def changed_nothing():
    import torch

    from kvlayout.memory.snapshot import take_snapshot

    taken = take_snapshot(torch.zeros(CONFIG.size_bytes, dtype=torch.int8))
    return changed(taken, taken)


@pytest.mark.parametrize("path", [None, 3, [], b"x", "\0", "x" * 5000], ids=kind_of)
def test_what_is_no_path_is_refused(path):
    for ask in (lambda: load(path), lambda: save(CONFIG, path), lambda: load_ranks(path)):
        if path == b"x":
            continue  # an operating system's own spelling of a path
        with pytest.raises(kv.LayoutError, match="path|folder"):
            ask()
    with pytest.raises(kv.LayoutError):
        captured_selection(path)


def test_numbers_of_numpy_are_saved_as_numbers(tmp_path):
    config = kv.KVCacheConfig(np.int64(4), [kv.KVCacheTensor(np.int64(512), ["a"], np.int32(512), np.int16(128))],
                              [GROUP], "LBNHC")
    save(config, tmp_path / "one.json")
    assert load(tmp_path / "one.json") == config
    chosen = kv.Selection(num_blocks=np.int64(8), tp_size=np.int32(2))
    assert kv.Selection.from_json(chosen.to_json()) == chosen


@pytest.mark.parametrize("groups", [[GROUP, GROUP], [kv.KVCacheGroupSpec(["a", "a"], SPEC)]])
def test_a_layer_is_in_one_group_once(groups):
    with pytest.raises(kv.LayoutError, match="kv_cache_groups='a': is named twice"):
        kv.AddressMap(kv.KVCacheConfig(4, CONFIG.kv_cache_tensors, groups, "LBNHC"))


@pytest.mark.parametrize("number", [99, True, "1", None])
def test_another_format_is_refused_on_every_way_in(number, tmp_path):
    import json

    save(CONFIG, tmp_path / "one.json")
    data = json.loads((tmp_path / "one.json").read_text()) | {"kvlayout": number}
    (tmp_path / "two.json").write_text(json.dumps(data))
    for ask in (lambda: load(tmp_path / "two.json"), lambda: kv.make_plan(captured_selection(tmp_path / "two.json")),
                lambda: kv.make_plan(captured_selection(data))):
        with pytest.raises(kv.LayoutError, match="is not the format that this release reads"):
            ask()


@pytest.mark.parametrize("answers", [None, 3, [], {}], ids=kind_of)
def test_an_engine_that_answers_nothing_is_no_engine_of_no_ranks(answers):
    class Engine:
        def collective_rpc(self, method, timeout=None, args=()):
            return answers

    with pytest.raises(kv.LayoutError, match="llm.*no list of answers"):
        attach(Engine())
