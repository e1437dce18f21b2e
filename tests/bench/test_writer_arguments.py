"""What check_writer takes and refuses: backends, layouts, specs, and what a kernel may not do to its arguments."""

import pytest
import torch

from kvlayout import FullAttentionSpec, LayoutError, MambaSpec
from kvlayout.bench import PrototypeBackend, check_writer
from kvlayout.bench.examples.torch_writer import write
from kvlayout.interior import Field, Interior
from kvlayout.layout import all_layouts
from tests.writer_checks import SPEC, check


class TransposedKeys:
    """A backend that keeps K as [head_size, N] in the first half of a (block, head) cell, V as [N, head_size]."""

    @classmethod
    def supported_kv_cache_layouts(cls):
        return "LBHNC", "BLHNC"

    @classmethod
    def get_supported_kernel_block_sizes(cls):
        return [8]

    @classmethod
    def interior(cls, spec):
        states, size, item = 8, spec.head_size, 2
        return Interior((
            Field("K", 0, size, 8 * item, state_stride=item, element_stride=states * item),
            Field("V", states * size * item, size, 8 * item, state_stride=size * item)), "cell")


def test_a_backend_declares_where_k_and_v_lie():
    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="bfloat16")

    def transposed(key, value, kv_cache, slot_mapping):
        blocks, heads, states, _ = kv_cache.shape
        assert states == 8
        cells = kv_cache.as_strided((blocks, heads, 2, 64), (*kv_cache.stride()[:2], 64, 1))
        keys, values = cells[:, :, 0].unflatten(2, (8, 8)), cells[:, :, 1].unflatten(2, (8, 8))
        kept = slot_mapping >= 0
        block, state = slot_mapping[kept] // states, slot_mapping[kept] % states
        keys[block, :, :, state] = key[:len(kept)][kept]
        values[block, :, state] = value[:len(kept)][kept]

    # One layer a block: a kernel block of 8 tokens in a block of 16 needs a dense page.
    report = check(transposed, spec, backend=TransposedKeys, vary=["num_kv_heads"])
    assert report.ok and set(report.by_layout) == {"LBHNC", "BLHNC"} and "kernel blocks" in report.by_feature
    assert not check(write, spec, backend=TransposedKeys, vary=["num_kv_heads"]).ok


@pytest.mark.parametrize(("arguments", "match"), [
    (dict(writer=None), "writer=None: must be a function"),
    (dict(spec=MambaSpec(block_size=16, shapes=((2, 3),), dtypes=("float32",))), "must be attention"),
    (dict(spec=7), "is not a KV cache spec"),
    (dict(spec=FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="int8", state_content_bytes=24)),
     "packed in an order that nobody declared"),
    (dict(spec=FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="bool")), "holds no fingerprints"),
    (dict(layouts=[]), "must be a list of different layouts"),
    (dict(layouts=["LBNHC", "NHD"]), "must be a list of different layouts"),
    (dict(layouts=["XYZ"]), "is not a KV cache layout"),
    (dict(layouts=5), "must be a list of different layouts"),
    (dict(cases=0), "must be at least 1"),
    (dict(cases="many"), "must be a whole number"),
    (dict(seed=-1), "must be at least 0"),
    (dict(vary=["colour"]), "must be a list of num_kv_heads"),
    (dict(vary="dtype"), "must be a list of num_kv_heads"),
    (dict(vary=3), "must be a list of num_kv_heads"),
    (dict(vary=[[]]), "must be a list of num_kv_heads"),
    (dict(device="meta"), "has no bytes to write or read"),
    (dict(device="cuda:99"), "isn't here"),
    (dict(backend=object), "has no supported_kv_cache_layouts"),
], ids=str)
def test_bad_arguments(arguments, match):
    given = dict(writer=write, spec=SPEC) | arguments
    with pytest.raises(LayoutError, match=match):
        check_writer(given.pop("writer"), given.pop("spec"), **given)


@pytest.mark.parametrize("spoil", [torch.Tensor.zero_, lambda given: given.resize_(given.shape[0] + 1)],
                         ids=["other values", "another shape"])
@pytest.mark.parametrize("index, name", list(enumerate(["key", "value", "slot_mapping"])), ids=str)
def test_what_is_handed_over_must_stay_as_it_is(index, name, spoil):
    def spoils(key, value, kv_cache, slot_mapping):
        write(key, value, kv_cache, slot_mapping)
        spoil((key, value, slot_mapping)[index])

    report = check(spoils, cases=20, vary=["num_kv_heads", "dtype"])
    assert set(report.counts) == {"input-changed"} and report.failed > 15
    assert report.first.message.startswith(f"{name} was changed")


def test_no_shape_that_could_be_run_is_no_right_kernel():
    huge = FullAttentionSpec(block_size=2**20, num_kv_heads=64, head_size=1024, dtype="bfloat16")
    report = check(write, huge, cases=2, vary=[])
    assert not report.ok and report.failed == 0 and len(report.not_checked) == 3
    assert report.sentences()[0] == "No shape could be run, so nothing is known."


@pytest.mark.parametrize("layouts", [("HBLNC", "LBNHC"), ("HBLNC",)], ids=["both", "alone"])
def test_all_layouts_that_a_backend_claims_are_tried(layouts):
    mine = type("Mine", (PrototypeBackend,), {"layouts": layouts})
    report = check(write, backend=mine, cases=8, vary=["num_kv_heads"])
    assert report.ok and tuple(report.by_layout) == layouts


def test_a_token_that_is_too_large_is_refused_before_anything_is_made():
    with pytest.raises(LayoutError, match="tokens of 8,796,093,022,208 bytes"):
        check(write, FullAttentionSpec(block_size=1, num_kv_heads=2, head_size=2**40, dtype="bfloat16"), cases=1)


def test_many_layouts_are_counted_not_listed():
    names = [layout.name for layout in all_layouts() if layout.name.endswith("C")]
    report = check(write, cases=24, layouts=names, vary=[])
    assert report.sentences()[0].startswith("Right in all 24 shapes (24 layouts).")
    report = check(lambda *given: None, cases=24, layouts=names, vary=[])
    by_layout = next(line for line in report.sentences() if line.startswith("By layout: LBHNC 1 of 1, "))
    assert by_layout.count(" of ") == 12 and by_layout.endswith(", and 12 more layouts.")


@pytest.mark.parametrize("name", ["", "  ", None, 3], ids=["empty", "blank", "none", "number"])
def test_a_field_has_a_name(name):
    class Nameless(PrototypeBackend):
        @classmethod
        def interior(cls, spec):
            return Interior((Field("K", 0, 8, 16), Field(name, 16, 8, 16)))

    with pytest.raises(LayoutError, match="must be a word"):
        check_writer(write, SPEC, backend=Nameless, cases=1)
