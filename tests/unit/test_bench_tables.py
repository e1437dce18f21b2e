"""The bench's tables say what the library's objects say, one row for each thing."""

import pytest

from kvlayout import FullAttentionSpec, LayoutError, Selection
from kvlayout.bench import PrototypeBackend, backend_matrix, matrix_diff, score_layouts, try_backend
from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.course import diff_table, listing, matrix_table, page_table, score_table, trial_table


class Padded(PrototypeBackend):
    layouts = ("BLHNC", "HBLNC")
    kernel_block_sizes = (16,)
    page_alignment = 100_000


class Nowhere(PrototypeBackend):
    layouts = ("HBLNC",)


def test_verdicts_alone_and_together():
    alone, together = trial_table(try_backend(Padded, Selection(num_blocks=4), beside=["TRITON_ATTN"])).rows
    assert alone[:3] == ("alone", "BLHNC", "Padded choice 1 of 2")
    assert together[:3] == ("together", "BLHNC", "Padded choice 1 of 2; TRITON_ATTN any")
    rows = trial_table(try_backend(Nowhere, Selection(num_blocks=4))).rows
    assert [row[:3] for row in rows] == [(name, "none", "Nowhere none") for name in ("alone", "together")]
    assert trial_table(try_backend(object(), Selection())).rows == (
        ("alone", "not asked", "", ""), ("together", "not asked", "", ""))


def test_a_padded_page():
    # Qwen3-0.6B: 8 heads x 16 tokens x 512 bytes are 65,536, and 28 such pages a block.
    rows = dict(page_table(try_backend(Padded, Selection(num_blocks=4)).pages[0]).rows)
    assert rows == {"layers with such pages": "28", "blocks, heads, states, bytes of a state": "4 × 8 × 16 × 512",
                    "strides in bytes": "2,800,000, 8,192, 512, 1",
                    "page": "100,000 B (97.66 KiB), 34,464 of it padding", "kernel block": "16 tokens",
                    "strides of the view in bfloat16": "1,400,000, 4,096, 256, 1"}


def test_scores_in_words():
    scores = score_layouts(FullAttentionSpec(16, num_kv_heads=8, head_size=128, dtype="bfloat16"), 1000, 80)
    table = score_table(scores[:2], ["block runs", "head shard runs", "padding", "contiguous page"])
    assert table.header == ("layout", "block runs [runs]", "head shard runs [runs]", "padding [yes/no]",
                            "contiguous page [yes/no]")
    assert table.rows == (("LBHNC", "80", "80", "yes", "yes"), ("LBNHC", "80", "1,280", "yes", "no"))


def test_the_matrix_and_what_changed():
    matrix = backend_matrix("0.33.0", platform="cpu")
    table = matrix_table(matrix)
    assert table.header == ("backend", *KVCacheLayout.__members__, "not settled") and len(table.rows) == len(matrix)
    assert {row[0]: row[-1] for row in table.rows} == {row.backend: "; ".join(row.not_settled) for row in matrix}
    assert matrix_table(backend_matrix("0.33.0")).header == ("backend", *KVCacheLayout.__members__)
    assert dict(zip(table.header, next(row for row in table.rows if row[0] == "CPU_ATTN"))) == {
        "backend": "CPU_ATTN", "LBHNC": "1st", **dict.fromkeys(("LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"), "–"),
        "not settled": ""}
    assert f"{len(matrix.excluded)} others can't do what is asked" in table.caption
    diff = matrix_diff("0.29.0", "0.33.0")
    rows = diff_table(diff).rows
    assert len(rows) == sum(map(len, (diff.added, diff.removed, diff.renamed, diff.cells, diff.facts)))
    assert ("new", "TRITON_FLASH_ATTN", "") in rows
    assert ("platforms", "FLASH_ATTN_MLA", "cuda; now cuda, xpu") in rows
    (moved,) = [row[2] for row in rows if row[:2] == ("LHBNC", "ROCM_AITER_FA")]
    assert moved.startswith("supported, choice 2; now depends: ")
    assert diff_table(matrix_diff("0.33.0", "0.33.0")).rows == (("nothing", "", ""),)


def test_a_listing_is_a_functions_text_and_nothing_is_run():
    shown = listing("kvlayout.bench.examples.triton_writer", "write_kernel")
    assert repr(shown).startswith("@triton.jit\ndef write_kernel(\n")
    assert repr(shown).endswith("tl.store(state + head_size + element, value, mask=element < head_size_v)")
    assert "if slot &gt;= 0:" in shown._repr_html_()
    whole = repr(listing("kvlayout.bench.examples.torch_writer", "write"))
    assert whole.startswith("def write(") and whole.endswith("torch.cat([key[kept], value[kept]], dim=-1)")
    listed = [("torch_writer", "write"), ("triton_writer", "write_kernel"), ("paged_decode", "gather")]
    for module, function in listed:  # a notebook shows 100 columns beside its file browser
        assert max(map(len, repr(listing(f"kvlayout.bench.examples.{module}", function)).splitlines())) <= 100
    for module, function in (("kvlayout.nope", "write"), ("kvlayout.bench.examples.torch_writer", "nope")):
        with pytest.raises(LayoutError):
            listing(module, function)


def test_any_order_of_the_axes_is_shown_as_chips():
    scores = score_layouts(FullAttentionSpec(16, num_kv_heads=8, head_size=128, dtype="bfloat16"), 10, 2)
    html = score_table(scores, ["block runs"])._repr_html_()
    assert all(f'aria-label="{one.layout.name}"' in html for one in scores) and len(scores) == 120
