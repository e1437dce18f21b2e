"""Scores of all 120 layouts: each number against a count of every byte of a tiny cache, and at real size."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.bench import MEASURES, DecodeShape, layers_alike, ranked, score_layouts, shard_words
from kvlayout.clinic import transfer_selections
from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.layout import all_layouts
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec import FullAttentionSpec, MambaSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
NAMES = [layout.name for layout in all_layouts()]
LINES = {"sectors": 32, "lines": 128}


def by_name(*args, **choices):
    return {score.layout.name: score for score in score_layouts(*args, **choices)}


@st.composite
def specs(draw):
    fields = dict(block_size=draw(st.sampled_from([1, 2, 4, 6])), head_size=draw(st.sampled_from([1, 3, 16, 33])),
                  dtype=draw(st.sampled_from(["int8", "bfloat16"])))
    kind = draw(st.sampled_from(["full", "full", "mla", "shared", "split", "mamba"]))
    if kind == "mamba":
        return MambaSpec(4, ((draw(st.integers(1, 40)), 3),), ("int8",))
    if kind == "mla":
        return MLAAttentionSpec(num_kv_heads=1, alignment=draw(st.sampled_from([None, 64])), **fields)
    tokens = {"shared": 2, "split": "1/2"}.get(kind, 1)
    spec = FullAttentionSpec(num_kv_heads=draw(st.integers(1, 4)), tokens_per_state=tokens,
                             head_size_v=draw(st.sampled_from([None, 5])), **fields)
    if draw(st.integers(0, 3)) == 0 and spec.page_size_bytes:
        spec = replace(spec, page_size_padded=spec.page_size_bytes + draw(st.integers(0, 40)))
    return spec


def placed(spec, layout, layers, blocks, **rest):
    config = get_kv_cache_config_from_groups([KVCacheGroupSpec([f"l{i}" for i in range(layers)], spec)], 0, layout,
                                             num_gpu_blocks_override=blocks)
    return kv.AddressMap(config, **rest)


def read_cells(spec, heads, blocks, states, context):
    """(head, block, states) of each unit that a decode step reads, and of those that it writes."""
    if spec.tokens_per_state <= 0:
        return [(h, 0, [0]) for h in range(heads)], [(h, 0, [0]) for h in range(heads)]
    context = min(context, blocks * spec.block_size)
    reads = []
    for block in range(blocks):
        tokens = min(spec.block_size, max(0, context - block * spec.block_size))
        reads += [(h, block, list(range(int(tokens // spec.tokens_per_state)))) for h in range(heads)]
    block, token = divmod(context - 1, spec.block_size)
    first = min(int(token // spec.tokens_per_state), states - 1)
    last = max(first + 1, min(int((token + 1) // spec.tokens_per_state), states))
    return reads, [(h, block, list(range(first, last))) for h in range(heads)]


def count_lines(address_map, units, size):
    total = 0
    for head, block, states in units:
        content = np.arange(address_map.shape(0)[3])
        total += len(np.unique(address_map.offset(0, block, head, np.array(states, dtype=int)[:, None], content)
                               // size))
    return total


def expected(spec, layout, blocks, layers, shards, context):
    """The numbers of a score, each counted; None where the layout can't hold the pages."""
    try:
        address_map = placed(spec, layout, layers, blocks)
    except LayoutError:
        return None
    _, heads, states, _ = address_map.shape(0)
    chosen = {"block": dict(block=0), "layer": dict(layer=0), "token": dict(layer=0, block=0, state=0)}
    if heads % shards == 0 or shards % heads == 0:
        chosen["head shard"] = dict(block=0, head=list(range(max(1, heads // shards))))
    found = {}
    for name, selection in chosen.items():
        lengths = [length for _, length in address_map.runs(**selection)]
        assert len(set(lengths)) == 1
        found |= {f"{name} runs": len(lengths), f"{name} run bytes": lengths[0]}
    reads, writes = read_cells(spec, heads, blocks, states, context)
    for what, size in LINES.items():
        found |= {f"read {what}": count_lines(address_map, reads, size),
                  f"write {what}": count_lines(address_map, writes, size)}
    offsets = address_map.offset(*np.indices((layers, *address_map.shape(0))))
    found["contiguous page"] = bool((np.diff(offsets[0, 0].ravel()) == 1).all())
    found["contiguous layer"] = bool((np.diff(offsets[0].ravel()) == 1).all())
    return found


@given(specs(), st.integers(1, 4), st.integers(1, 3), st.sampled_from([1, 2, 8]), st.integers(1, 30),
       st.lists(st.sampled_from(NAMES), min_size=4, max_size=4))
def test_every_number_by_counting(spec, blocks, layers, shards, context, names):
    if spec.num_states == 0:
        return
    scores = by_name(spec, blocks, layers, shards=shards, decode=DecodeShape(context))
    assert len(scores) == 120
    for name in names:
        score, counted = scores[name], expected(spec, kv.PhysicalLayout(name), blocks, layers, shards, context)
        assert bool(score.refused) == (counted is None)
        if counted is None:
            assert set(score.measures) == {"padding", "mixed pages", "mixed groups"}
        else:
            left_out = {"head shard runs", "head shard run bytes"} - counted.keys()
            assert list(score.measures) == [one for one in MEASURES if one not in left_out]
            assert bool(left_out) == bool(score.no_shard) == ("evenly" in score.no_shard)
            assert {key: score.measures[key] for key in counted} == counted


class Halves:
    """A backend whose kernels take blocks of two tokens."""

    @staticmethod
    def get_supported_kernel_block_sizes():
        return [2]


def splits(spec, layout, layers, blocks) -> bool:
    """Whether vLLM's worker cuts blocks of four tokens, and each token is found where the uncut page has it."""
    whole = placed(spec, layout, layers, blocks)
    if kv.prepare_kernel_block_sizes(whole.config, [[Halves]]) != [2]:
        return False
    try:
        cut = placed(spec, layout, layers, blocks, kernel_block_sizes=[2])
    except LayoutError:
        return False
    pages = [np.unique(one.offset(*np.indices((layers, *one.shape(0))))) for one in (whole, cut)]
    return bool((pages[0] == pages[1]).all())


@pytest.mark.parametrize(("blocks", "layers", "heads"), [(3, 2, 2), (1, 1, 1), (2, 3, 1), (4, 2, 4),
                                                         (2, 3, 2), (3, 1, 2), (2, 4, 4)])
def test_what_stays_expressible_is_what_the_library_can_plan(blocks, layers, heads):
    spec = FullAttentionSpec(block_size=4, num_kv_heads=heads, head_size=4, dtype="bfloat16")
    for name, score in by_name(spec, blocks, layers).items():
        layout = kv.PhysicalLayout(name)

        def can(spec=spec, layout=layout, **rest):
            try:
                placed(spec, layout, layers, blocks, **rest)
            except LayoutError:
                return 0
            return 1

        assert score.measures["kernel blocks"] == splits(spec, layout, layers, blocks)
        assert score.measures["padding"] == can(replace(spec, page_size_padded=spec.page_size_bytes + 64))
        assert score.measures["typed view"] == (placed(spec, layout, layers, blocks).strides(0)[3] == 1)
        big = replace(spec, block_size=8)
        mixed = UniformTypeKVCacheSpecs(4, {"a": spec, "b": replace(spec, head_size=8)})
        for measure, groups in (("mixed groups", [KVCacheGroupSpec(["a"], spec), KVCacheGroupSpec(["b"], big)]),
                                ("mixed pages", [KVCacheGroupSpec(["a", "b"], mixed)])):
            try:
                kv.AddressMap(get_kv_cache_config_from_groups(groups, 0, layout, num_gpu_blocks_override=blocks))
                fits = 1
            except LayoutError:
                fits = 0
            assert score.measures[measure] == fits, (name, measure)


def test_a_70b_model():
    scores = by_name(SPEC, 100_000, 80)
    assert list(scores)[:6] == list(kv.KVCacheLayout.__members__)
    assert [name for name, score in scores.items() if score.in_vllm] == list(kv.KVCacheLayout.__members__)
    measures = scores["BLHNC"].measures
    assert (measures["block runs"], measures["block run bytes"]) == (1, 5_242_880)
    assert (measures["layer runs"], measures["layer run bytes"]) == (100_000, 65_536)
    assert (measures["head shard runs"], measures["head shard run bytes"]) == (80, 32_768)
    assert (measures["token runs"], measures["token run bytes"]) == (8, 512)
    # 4,096 tokens of 8 heads, 512 bytes each; one token is 8 x 512 bytes.
    assert (measures["read sectors"], measures["write sectors"]) == (4096 * 8 * 16, 8 * 16)
    assert (measures["read lines"], measures["write lines"]) == (4096 * 8 * 4, 8 * 4)
    # Each byte in a sector of its own where blocks lie innermost.
    assert scores["LHNCB"].measures["read sectors"] == 4096 * 8 * 512
    assert scores["LHNCB"].measures["write sectors"] == 8 * 512


def test_the_table_of_28_layers():
    """One block, head and layer of 28 layers, 8 heads, blocks of 16, head size 128, bfloat16: as published."""
    scores = by_name(SPEC, 64, 28, shards=8)
    got = {name: tuple(scores[name].measures[f"{part} runs"] for part in ("block", "head shard", "token", "layer"))
           for name in kv.KVCacheLayout.__members__}
    assert got == {"LBHNC": (28, 28, 8, 1), "LBNHC": (28, 448, 1, 1), "LHBNC": (224, 28, 8, 1),
                   "BLHNC": (1, 28, 8, 64), "BLNHC": (1, 448, 1, 64), "BHLNC": (1, 1, 8, 512)}


def test_scoring_is_quick_and_costs_the_same_for_any_pool():
    score_layouts(SPEC, 10, 80)
    for blocks in (100_000, 100_000_000):
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            score_layouts(SPEC, blocks, 80, decode=DecodeShape(1_000_000))
            seconds.append(time.perf_counter() - start)
        assert min(seconds) < 1, f"{min(seconds):.2f} s"
    state = MambaSpec(16, ((128, 64, 128), (4, 8192)), ("float32", "bfloat16"))
    assert by_name(state, 100_000, 48)["LHNCB"].measures["read sectors"] == state.page_size_bytes


def test_measures_say_what_they_are():
    assert all(one.unit and one.meaning and one.better in ("less", "more") for one in MEASURES.values())


def test_the_decode_step_in_words():
    assert DecodeShape(100).sentence(SPEC, 7) == (
        "A decode step at 100 tokens reads 8 head slots of 512 bytes a state, each once for all query heads that "
        "share it, and writes the last token's.")
    # Where the pool is smaller, what is said is what was counted.
    assert DecodeShape(100).sentence(SPEC, 3).startswith(
        "A decode step at 48 tokens (of 100 asked: the pool of 3 blocks has no room for more) reads 8 head slots")
    assert by_name(SPEC, 3, 1, decode=DecodeShape(100))["LBNHC"].measures == \
        by_name(SPEC, 3, 1, decode=DecodeShape(48))["LBNHC"].measures
    assert "one recurrent state of 6 bytes" in DecodeShape().sentence(MambaSpec(4, ((2, 3),), ("int8",)), 1)


@pytest.mark.parametrize(("act", "argument"), [
    (lambda: score_layouts(SPEC, 0, 1), "num_blocks"), (lambda: score_layouts(SPEC, 1, 0), "num_layers"),
    (lambda: score_layouts(SPEC, 1, 1, shards=0), "shards"), (lambda: score_layouts(SPEC, 1.5, 1), "num_blocks"),
    (lambda: score_layouts("spec", 1, 1), "spec"), (lambda: DecodeShape(0), "context_tokens"),
    (lambda: score_layouts(SPEC, 1, 1, decode=5), "decode"),
    (lambda: score_layouts(SPEC, 2**62, 2), "num_blocks"), (lambda: score_layouts(SPEC, 10**30, 2), "num_blocks"),
    (lambda: score_layouts(SPEC, 2**47, 1), "num_blocks"), (lambda: score_layouts(SPEC, 1, 1025), "num_layers"),
    (lambda: score_layouts(SPEC, 1, 10**30), "num_layers"),
    (lambda: score_layouts(UniformTypeKVCacheSpecs(16, {"a": SPEC}), 1, 1), "spec"),
])
def test_bad_input(act, argument):
    with pytest.raises(LayoutError) as caught:
        act()
    assert caught.value.argument == argument


def test_a_page_of_no_bytes_is_refused_by_every_layout():
    nothing = FullAttentionSpec(block_size=1, num_kv_heads=1, head_size=1, dtype="int8", tokens_per_state=2)
    assert all("no bytes" in score.refused for score in score_layouts(nothing, 4, 2))


@pytest.mark.parametrize("spec", [MambaSpec(2**20, ((2, 3),), ("int8",)), MambaSpec(999_983, ((2, 3),), ("int8",)),
                                  FullAttentionSpec(999_983, num_kv_heads=2, head_size=8, dtype="bfloat16")],
                         ids=["state", "state of a prime", "prime"])
def test_a_block_of_many_tokens_costs_no_more(spec):
    started = time.process_time()
    scores = score_layouts(spec, 4, 3)
    assert time.process_time() - started < 2 and len(scores) == 120
    assert by_name(spec, 4, 3)["LBNHC"].measures["kernel blocks"] == isinstance(spec, FullAttentionSpec)


@pytest.mark.parametrize(("blocks", "layers"), [(2**47 - 1, 1), (2**36, 1024), (1, 1024)])
def test_the_largest_cache_of_63_bits_is_scored(blocks, layers):
    measures = by_name(SPEC, blocks, layers, decode=DecodeShape(10**30))["LBNHC"].measures
    assert measures["block runs"] * measures["block run bytes"] == layers * 65_536
    assert measures["layer run bytes"] == blocks * 65_536
    assert measures["read sectors"] == blocks * 65_536 // 32


def test_ranked():
    scores = score_layouts(SPEC, 64, 28, shards=3)
    assert ranked(scores, "head shard runs") == scores  # nobody has it, so all stay as they were
    best = [one.measures["token runs"] for one in ranked(scores, "token runs")]
    assert best == sorted(best)
    assert ranked(scores, "token runs", best_first=False)[0].measures["token runs"] == best[-1]
    with pytest.raises(LayoutError, match="measure"):
        ranked(scores, "speed")


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "FLASHINFER", "ROCM_ATTN"])
def test_a_head_shard_is_what_a_transfer_takes(backend):
    """Where K and V have head slots of their own, the first slots are no rank's share, so nothing is counted."""
    dtype = "nvfp4" if backend == "FLASHINFER" else "auto"
    plan = kv.make_plan(kv.Selection(model="Qwen/Qwen3-0.6B", num_blocks=4, backend=backend, kv_cache_dtype=dtype,
                                     layout="LBHNC"))
    spec, layers = layers_alike(plan.address_map, 0)
    assert layers == 28 and spec == plan.address_map.region(0).spec
    for shards in (1, 2, 4, 8, 16):
        score = by_name(spec, 4, layers, shards=shards)["LBHNC"]
        if shards > 1 and backend != "FLASH_ATTN":
            assert "head shard runs" not in score.measures and "aren't its 8 heads" in score.no_shard
            assert shard_words(spec, shards) == f"No head shard is counted: {score.no_shard}."
            continue
        took = transfer_selections(plan.address_map, block=0, layer=0, tp_size=shards)["one head shard"]
        assert sum(took.run_bytes.values()) == score.measures["head shard runs"], shards
        assert took.total_bytes == score.measures["head shard runs"] * score.measures["head shard run bytes"]


def test_the_head_shard_in_words():
    assert shard_words(SPEC, 2) == "A head shard is 4 of the 8 head slots."
    assert shard_words(SPEC, 999_992) == "A head shard is 1 of the 8 head slots, which 124,999 ranks share."
    assert shard_words(SPEC, 3) == "No head shard is counted: 8 heads can't be dealt out evenly to 3 shards."
