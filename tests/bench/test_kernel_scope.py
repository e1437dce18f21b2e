"""What a verdict covers: which shapes were tried, which weren't, and what all wrong ones have in common."""

from dataclasses import replace

import pytest
import torch

from kvlayout import FullAttentionSpec, KVCacheLayout, LayoutError, MambaSpec, MLAAttentionSpec
from kvlayout.bench import VARY, PrototypeBackend, check_reader, check_writer
from kvlayout.bench.examples.paged_decode import gather
from kvlayout.bench.examples.torch_writer import write

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=32, dtype="bfloat16")
NEAR = VARY[:-1]
SIX = ", ".join(KVCacheLayout.__members__)


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # another test may have switched it on


def lines(report, start):
    return [one for one in report.not_checked if one.startswith(start)]


@pytest.mark.parametrize(("spec", "layout", "rule"), [
    (replace(SPEC, page_size_padded=SPEC.page_size_bytes + 64), "LHBNC", "can't pad pages"),
    (SPEC, "LBHCN", "scatters the bytes of one bfloat16 element")], ids=["padding", "bytes"])
def test_a_layout_that_cant_hold_the_given_spec_says_so(spec, layout, rule):
    report = check_writer(write, spec, cases=12, layouts=[layout], vary=NEAR)
    found, = lines(report, f"{layout} with the spec as given, which it can't hold ({rule}")
    assert report.ok and found.endswith("it was tried with others.")
    assert not lines(check_writer(write, SPEC, cases=12, vary=NEAR), "LBHNC")


def test_what_no_shape_had_is_told():
    report = check_writer(write, SPEC, cases=1, vary=[], layouts=["LBNHC"])
    found = next(one for one in report.not_checked if one.endswith("no shape that was tried has them."))
    told = set(found.partition(":")[0].split(", "))
    assert {"odd head count", "head_size_v ≠ head_size", "kernel blocks", "page padding"} <= told
    assert not told & set(report.by_feature) and "offsets past 2^31" not in told
    among, = (one for one in report.sentences() if one.startswith("Among them: bfloat16 1, several heads 1"))
    assert among.endswith(".")


def test_readers_and_latents_have_fewer_properties():
    report = check_reader(gather, SPEC, cases=60)
    assert report.ok and not {"ignored tokens", "strided key and value"} & {*report.by_feature, *report.always}
    assert not any("ignored tokens" in one for one in report.not_checked)
    latent = MLAAttentionSpec(block_size=4, num_kv_heads=1, head_size=72, dtype="bfloat16")
    assert not any("head" in one for one in check_writer(write, latent, cases=60).not_checked)


def test_layouts_that_only_had_far_offsets_are_named():
    report = check_writer(write, SPEC, cases=2, vary=["far_blocks", "far_uint32"])
    if report.far_cases == 6:
        assert lines(report, "LHBNC, BLHNC, BLNHC, BHLNC but for offsets past 2^31: there were fewer cases")
    else:
        assert lines(report, "offsets past 2^31 in ")


def test_another_head_size_for_v_isnt_tried_for_a_backend_and_that_is_told():
    report = check_writer(write, replace(SPEC, block_size=32), cases=60, backend="TRITON_ATTN", vary=NEAR)
    assert report.ok and any("head_size_v ≠ head_size" in one for one in report.not_checked)


def hard_block_size(key, value, kv_cache, slot_mapping):
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    kv_cache[slots // 16, :, slots % 16] = torch.cat([key[:len(kept)][kept], value[:len(kept)][kept]], dim=2)


def hard_head_size(key, value, kv_cache, slot_mapping):
    write(key[..., :32], value[..., :32], kv_cache[..., :64], slot_mapping)


def heads_reversed(key, value, kv_cache, slot_mapping):
    write(key.flip(1), value.flip(1), kv_cache, slot_mapping)


def only_float16_is_wrong(key, value, kv_cache, slot_mapping):
    write(key * 2 if key.dtype == torch.float16 else key, value, kv_cache, slot_mapping)


def far_blocks_are_wrong(key, value, kv_cache, slot_mapping):
    write(key * 2 if len(kv_cache) > 1000 else key, value, kv_cache, slot_mapping)


@pytest.mark.parametrize(("writer", "always"), [
    (hard_block_size, ("another block size",)), (heads_reversed, ("several heads",)),
    (only_float16_is_wrong, ("float16",)), (far_blocks_are_wrong, ("offsets past 2^31",))],
    ids=["block size", "heads", "dtype", "far"])
def test_what_all_wrong_cases_have_in_common(writer, always):
    report = check_writer(writer, SPEC, cases=120, vary=VARY if writer is far_blocks_are_wrong else NEAR)
    if writer is far_blocks_are_wrong and not report.far_cases:
        assert report.ok and lines(report, "offsets past 2^31 in ")  # a machine without the memory for it
    else:
        assert report.always == always and f"Every wrong case has: {always[0]}." in report.sentences()


def test_a_head_size_of_its_own():
    assert "another head size" in check_writer(hard_head_size, SPEC, cases=60, vary=["head_size"]).always


def test_each_kind_of_fault_has_a_sentence():
    report = check_writer(hard_block_size, SPEC, cases=60, vary=NEAR)
    assert list(report.counts)[:1] == ["raised"] and len(report.faults) >= 3
    for one in report.faults[1:]:
        assert f"The first {one}" in report.sentences()


def test_equal_runs_say_the_same():
    one, other = (str(check_writer(heads_reversed, SPEC, cases=12, vary=NEAR)) for _ in range(2))
    assert one == other


def backend(**changes):
    repack = classmethod(lambda cls, spec: replace(spec, **changes))
    return type("Mine", (PrototypeBackend,), {"customize_spec": repack})


def test_a_backend_that_changes_the_block_is_told():
    report = check_writer(write, SPEC, backend=backend(block_size=48), cases=12, vary=[])
    assert lines(report, "customize_spec of Mine changes block_size")


def test_a_backend_that_makes_no_attention_of_attention():
    state = MambaSpec(block_size=16, shapes=((2, 3),), dtypes=("float32",))
    mine = type("Mine", (PrototypeBackend,), {"customize_spec": classmethod(lambda cls, spec: state)})
    for check, kernel in ((check_writer, write), (check_reader, gather)):
        with pytest.raises(LayoutError, match="must be attention with one state a token") as error:
            check(kernel, SPEC, backend=mine, cases=1)
        assert error.value.argument == "customize_spec of Mine"


def test_a_backend_with_many_block_sizes_is_asked_once_a_page(monkeypatch):
    asked = []
    mine = type("Mine", (PrototypeBackend,), {"kernel_block_sizes": (16, 32)})
    monkeypatch.setattr(mine, "get_supported_kernel_block_sizes", classmethod(
        lambda cls, spec=None: asked.append(spec) or (16, 32)))
    assert check_writer(write, SPEC, backend=mine, cases=60, vary=["block_size"]).ok
    assert len(asked) < 20


def test_offsets_that_werent_asked_for_are_told():
    near, far = (check_writer(write, SPEC, cases=6, vary=vary) for vary in ([], ["far_blocks"]))
    assert lines(near, "offsets past 2^31, which weren't asked for.") and not lines(near, "offsets past 2^32")
    assert lines(far, "offsets past 2^32, which weren't asked for.")


def test_in_tritons_interpreter_offsets_stay_below_those_that_it_wraps(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    report = check_writer(write, SPEC, cases=6)
    assert lines(report, "offsets past 2^32, as Triton's interpreter, switched on here, takes")
    assert report.ok and not lines(report, "offsets past 2^32 in")
