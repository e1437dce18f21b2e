"""What a grouping costs: content, padding and the sentence that says so."""

import pytest

from kvlayout.errors import LayoutError
from kvlayout.group_report import explain_groups
from kvlayout.grouping import get_kv_cache_groups, project_kv_cache_groups
from kvlayout.spec import FullAttentionSpec, MambaSpec, SlidingWindowSpec

HEADS = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
PAGE = 16 * 8 * 128 * 2 * 2


def test_a_short_group_shows_its_padding_layers():
    full, window = FullAttentionSpec(**HEADS), SlidingWindowSpec(**HEADS, sliding_window=128)
    layers = {f"full.{i}": full for i in range(13)} | {f"window.{i}": window for i in range(12)}
    first, second = explain_groups(get_kv_cache_groups(layers, "LBNHC"), "LBNHC")
    assert first.padding_layers == 0
    assert first.padding_share == 0
    assert (second.padding_layers, second.block_bytes, second.content_bytes) == (1, 13 * PAGE, 12 * PAGE)
    assert second.padding_share == pytest.approx(1 / 13)
    assert second.sentence == ("12 layers of SlidingWindowSpec, 16 tokens a block: 786,432 of 851,968 bytes hold "
                               "content, with room for 1 more (7.7% unused).")


def test_padding_inside_pages_counts_too():
    mamba = MambaSpec(16, ((1024,),), ("float32",))
    layers = {"a": FullAttentionSpec(**HEADS), "m": mamba}
    _, state = explain_groups(get_kv_cache_groups(layers, "LBHNC"), "LBHNC")
    assert state.page_sizes_bytes == (PAGE,)
    assert state.padding_layers == 0
    assert state.padding_share == 1 - 4096 / PAGE


def test_distance_between_aligned_pages_is_no_padding_layer():
    aligned = FullAttentionSpec(**HEADS, block_stride_alignment=PAGE + PAGE // 2)
    groups = get_kv_cache_groups({"a": aligned, "b": aligned}, "LBHNC")
    report, = explain_groups(groups, "LBHNC")
    assert (report.block_bytes, report.padding_layers) == (3 * PAGE, 0)
    older, = explain_groups(groups, "LBHNC", vllm_version="0.31.0")
    assert (older.block_bytes, older.padding_layers) == (3 * PAGE, 1)


def test_mixed_pages_have_no_padding_layers():
    small = FullAttentionSpec(**HEADS | {"head_size": 64})
    report, = explain_groups(get_kv_cache_groups({"a": FullAttentionSpec(**HEADS), "b": small}, "BLHNC"), "BLHNC")
    assert (report.page_sizes_bytes, report.padding_layers, report.padding_share) == ((PAGE, PAGE // 2), 0, 0)
    assert report.kinds == ("FullAttentionSpec",)


def test_groups_of_other_ranks():
    full, window = FullAttentionSpec(**HEADS), SlidingWindowSpec(**HEADS, sliding_window=128)
    groups = project_kv_cache_groups(get_kv_cache_groups({"a": full, "b": window}, "LBNHC"), ["a"])
    assert explain_groups(groups, "LBNHC")[1].sentence == "No layer here: the group belongs to other pipeline ranks."
    assert explain_groups([], "LBNHC") == []
    with pytest.raises(LayoutError, match="hold no page of any byte"):
        explain_groups(project_kv_cache_groups(groups, []), "LBNHC")
