"""The matrix of backends and layouts against the answers that vLLM's own classes gave, release by release."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvlayout.bench import PrototypeBackend, backend_matrix, matrix_diff
from kvlayout.bench.matrix import DEPENDS, FIRST, REFUSED, STATES, SUPPORTED
from kvlayout.bench.outcomes import UNKNOWN
from kvlayout.errors import LayoutError
from kvlayout.facts.catalogue import load
from kvlayout.layout import KVCacheLayout
from kvlayout.resolve import get_supported_kv_cache_layouts, resolve
from kvlayout.versions import VLLM_VERSIONS

GOLDEN = Path(__file__).parents[1] / "golden" / "backends"
SIX = list(KVCacheLayout.__members__)


def answers(version):
    """(name, what the class answered) for the recorded share of a release's backends."""
    lines = map(json.loads, (GOLDEN / f"backends-{version}.jsonl").read_text().splitlines())
    return [(line["input"]["enum"], line["output"]) for line in lines if line["input"].get("enum")]


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_states_are_what_the_classes_answered(version):
    matrix, checked = backend_matrix(version), 0
    for name, output in answers(version):
        row = matrix.row(name)
        if row is None or output.get("supported_kv_cache_layouts", "missing") == "missing":
            continue
        declared = output["supported_kv_cache_layouts"]
        for layout, cell in row.cells.items():
            expected = REFUSED if declared is not None and layout not in declared else SUPPORTED
            if layout == ("LBNHC" if declared is None else declared[0]):
                expected = FIRST
            # The answer was a CPU's; where it depends, it is one of the ways.
            assert cell.state == expected or (cell.state == DEPENDS and expected in cell.why), (name, layout)
        checked += 1
    assert checked > 20


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_every_cell_is_there_and_says_why(version):
    matrix = backend_matrix(version)
    assert [row.backend for row in matrix] == list(load(version)) and not matrix.excluded
    for row in matrix:
        assert list(row.cells) == SIX
        assert all(cell.state in STATES and cell.why for cell in row.cells.values())
        assert row.layouts(FIRST, SUPPORTED, DEPENDS), f"{row.backend} takes no layout"


def test_the_first_choice_is_what_the_resolver_would_take():
    for name, backend in load("0.33.0").items():
        row = backend_matrix("0.33.0").row(name)
        if any(cell.state == DEPENDS for cell in row.cells.values()):
            continue
        alone = get_supported_kv_cache_layouts([backend])
        assert row.layouts(FIRST) == [resolve([[one.name for one in alone]], []).layout.name]
        assert row.layouts(FIRST, SUPPORTED)[0] == alone[0].name
        assert set(row.layouts(FIRST, SUPPORTED)) == {one.name for one in alone}


def test_what_depends_shows_vllms_condition():
    cells = backend_matrix("0.33.0").row("FLASHINFER").cells
    condition = "capability is not None and capability.major == 10"
    assert cells["LBHNC"].state == DEPENDS
    assert cells["LBHNC"].why == f"first choice if {condition}; supported otherwise"
    assert cells["LBNHC"].why == f"refused if {condition}; first choice otherwise"
    assert cells["BLHNC"].state == SUPPORTED
    # A composite: its part's condition holds for it too.
    assert backend_matrix("0.33.0").row("TRITON_FLASHINFER").cells["LBNHC"].why == cells["LBNHC"].why
    # Only AMD's GPUs have a CDNA generation; which one, the platform doesn't say.
    octave = backend_matrix("0.33.0", platform="rocm").row("ROCM_OCTAVE").cells
    assert (octave["LBHNC"].state, octave["LBNHC"].state, octave["BLHNC"].state) == (FIRST, DEPENDS, REFUSED)
    assert "get_cdna_version() == 3" in octave["LBNHC"].why


def test_what_can_i_run():
    matrix = backend_matrix("0.33.0", platform="cuda", dtype="bfloat16", kv_cache_dtype="auto", mla=True,
                            head_size=576, block_size=64)
    assert [row.backend for row in matrix if not row.not_settled] == [
        "FLASHINFER_MLA", "FLASHMLA", "FLASH_ATTN_MLA", "TRITON_MLA"]
    assert matrix.excluded["FLASH_ATTN"] == (
        "keeps keys and values; refuses head size 576: its class wants head_size <= 512")
    assert matrix.excluded["CPU_MLA"].startswith("runs on cpu, not cuda; refuses blocks of 64")
    assert len(matrix) + len(matrix.excluded) == len(load("0.33.0"))


@pytest.mark.parametrize("mla", [True, False])
@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_recurrent_state_is_neither_latents_nor_keys_and_values(version, mla):
    matrix = backend_matrix(version, mla=mla)
    assert not any(row.facts["is_ssm"] for row in matrix)
    states = [name for name, one in load(version).items() if one.is_ssm]
    assert states and {matrix.excluded[name] for name in states} == {"keeps recurrent state"}


def test_what_is_not_recorded_is_said():
    rows = {row.backend: row for row in backend_matrix("0.33.0", platform="cuda", head_size=96, block_size=64)}
    assert rows["TRITON_ATTN_DIFFKV"].not_settled == ("where it runs is not recorded",)
    (sizes,) = rows["FLASH_ATTN"].not_settled
    assert "not recorded if" in sizes  # two kernels' own sizes decide
    assert rows["TRITON_ATTN"].not_settled == ()
    pooled = backend_matrix("0.33.0", block_size=64).row("Glm5NextIndexerBackend")
    assert "its kernel block sizes are not recorded" in pooled.not_settled and UNKNOWN == "not recorded"


def test_dtypes_of_the_model_and_of_the_cache():
    fp8 = [row.backend for row in backend_matrix("0.33.0", kv_cache_dtype="fp8")]
    assert "FLASH_ATTN" in fp8 and "CACHE_ONLY_ATTN" not in fp8
    half = backend_matrix("0.33.0", dtype="float16")
    assert half.excluded["AMX_MLA"] == "takes model dtypes bfloat16, not float16"
    assert half.row("CPU_ATTN") is not None


@pytest.mark.parametrize(("old", "new"), list(zip(VLLM_VERSIONS, VLLM_VERSIONS[1:])))
def test_a_diff_is_the_difference_of_the_recordings(old, new):
    diff, before, after = matrix_diff(old, new), load(old), load(new)
    assert (diff.old, diff.new) == (old, new)
    assert set(diff.added) | set(diff.renamed.values()) == set(after) - set(before)
    assert set(diff.removed) | set(diff.renamed) == set(before) - set(after)
    assert all(before[a].class_path == after[b].class_path for a, b in diff.renamed.items())
    back = {b: a for a, b in diff.renamed.items()}
    for fact in ("platforms", "head_sizes", "kernel_block_sizes", "is_mla"):
        changed = {name for name, one in after.items() if back.get(name, name) in before
                   and getattr(one, fact) != getattr(before[back.get(name, name)], fact)}
        assert {one.backend for one in diff.facts if one.what == fact} == changed
    cells = {(one.backend, one.what) for one in diff.cells}
    for name, one in after.items():
        earlier = before.get(back.get(name, name))
        if earlier is None or one.parts or one.layout_branches or earlier.layout_branches:
            continue
        for layout in SIX:
            def state(backend, layout=layout):
                declared = backend.layouts or ("LBNHC", *SIX)
                return (layout in declared, layout == declared[0])

            assert ((name, layout) in cells) == (state(one) != state(earlier))


def test_a_diff_of_what_was_filtered_and_of_nothing():
    assert not matrix_diff("0.33.0", "0.33.0")
    diff = matrix_diff(backend_matrix("0.29.0", platform="cpu"), backend_matrix("0.33.0", platform="cpu"))
    assert diff and "CPU_V4_INDEXER" in diff.added and "FLASHINFER" not in diff.added
    late = matrix_diff("0.31.0", "0.32.0")
    assert {(one.what, one.old.state, one.new.state) for one in late.cells
            if one.backend == "FLASHINFER_MLA_SPARSE_SM90"} == {
        ("LBHNC", FIRST, SUPPORTED), ("LBNHC", REFUSED, FIRST), ("LHBNC", REFUSED, SUPPORTED),
        ("BLHNC", REFUSED, SUPPORTED), ("BLNHC", REFUSED, SUPPORTED), ("BHLNC", REFUSED, SUPPORTED)}


@pytest.mark.parametrize("asked", [
    {"head_size": 512}, {"kv_cache_dtype": "fp8"}, {"platform": "xpu"}, {"block_size": 128}])
@pytest.mark.parametrize(("old", "new"), [("0.29.0", "0.33.0"), ("0.32.0", "0.33.0"), ("0.33.0", "0.29.0")])
def test_a_filtered_diff_tells_what_is_new_from_what_is_newly_able(old, new, asked):
    before, after = (backend_matrix(version, **asked) for version in (old, new))
    diff, whole = matrix_diff(before, after), matrix_diff(old, new)
    able = [{row.backend for row in matrix} for matrix in (before, after)]
    back = {b: a for a, b in whole.renamed.items()}
    assert set(diff.added) == set(whole.added) & able[1] and set(diff.removed) == set(whole.removed) & able[0]
    assert set(diff.gained) == {name for name in able[1] - set(whole.added) if back.get(name, name) not in able[0]}
    assert set(diff.lost) == {whole.renamed.get(name, name) for name in able[0] - set(whole.removed)} - able[1]
    assert all(why == before.excluded[back.get(name, name)] for name, why in diff.gained.items())
    assert all(why == after.excluded[name] for name, why in diff.lost.items())


def test_a_backend_of_ones_own_in_a_diff():
    class Mine(PrototypeBackend):
        layouts = ("LBNHC",)

    old, new, own = backend_matrix("0.32.0"), backend_matrix("0.33.0"), backend_matrix("0.32.0", backends=[Mine])
    assert not matrix_diff(own, own) and matrix_diff(old, own).added == ("Mine",)
    assert matrix_diff(own, new).removed == ("Mine", *matrix_diff(old, new).removed)


def test_an_order_that_changes_is_told():
    matrix = backend_matrix("0.33.0", head_size=64)
    row = next(row for row in matrix if row.layouts(FIRST, SUPPORTED)[2:] and all(
        cell.choice or cell.state == REFUSED for cell in row.cells.values()))
    first, second, third = sorted((cell.choice, name) for name, cell in row.cells.items() if cell.choice)[:3]
    cells = {**row.cells, second[1]: replace(row.cells[second[1]], choice=3),
             third[1]: replace(row.cells[third[1]], choice=2)}
    moved = replace(matrix, rows=tuple(replace(one, cells=cells) if one is row else one for one in matrix))
    diff = matrix_diff(matrix, moved)
    assert [(one.backend, one.what, str(one.old), str(one.new)) for one in diff.cells] == [
        (row.backend, name, f"supported, choice {was}", f"supported, choice {5 - was}") for name in row.cells
        for was, named in (second, third) if named == name]


@pytest.mark.parametrize(("act", "argument"), [
    (lambda: backend_matrix("0.28.0"), "vllm_version"), (lambda: backend_matrix(platform="tpu"), "platform"),
    (lambda: backend_matrix(dtype="float7"), "dtype"), (lambda: backend_matrix(dtype="fp8"), "dtype"),
    (lambda: backend_matrix(kv_cache_dtype="float7"), "kv_cache_dtype"), (lambda: backend_matrix(mla="yes"), "mla"),
    (lambda: backend_matrix(head_size=0), "head_size"), (lambda: backend_matrix(block_size="16"), "block_size"),
    (lambda: matrix_diff("0.33.0", 5), "new"), (lambda: backend_matrix(["0.33.0"]), "version"),
    (lambda: matrix_diff("0.33.0", backend_matrix("0.33.0", head_size=64)), "new"),
    (lambda: backend_matrix(backends=[PrototypeBackend, PrototypeBackend]), "backends"),
    (lambda: matrix_diff("0.1.0", "0.33.0"), "vllm_version"),
])
def test_bad_input(act, argument):
    with pytest.raises(LayoutError) as caught:
        act()
    assert caught.value.argument == argument
