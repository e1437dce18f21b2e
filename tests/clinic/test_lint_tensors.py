"""Lints of live tensors and of an allocated cache, with stand-ins for tensors and with torch's own."""

from dataclasses import dataclass

import pytest

import kvlayout as kv
from kvlayout.clinic.linting import lint
from kvlayout.clinic.tensors import live_view


@dataclass
class Storage:
    size: int

    def nbytes(self) -> int:
        return self.size


@dataclass
class Tensor:
    """As much of a tensor as lint asks for; strides and offset in elements."""

    shape: tuple
    strides: tuple
    size: int
    item: int = 2
    offset: int = 0
    base: int = 1 << 20

    def stride(self) -> tuple:
        return self.strides

    def element_size(self) -> int:
        return self.item

    def data_ptr(self) -> int:
        return self.base + self.offset * self.item

    def storage_offset(self) -> int:
        return self.offset

    def untyped_storage(self) -> Storage:
        return Storage(self.size)


def rules(findings: list) -> set[str]:
    return {one.rule for one in findings}


def packed(layers: int = 3, blocks: int = 10, size: int | None = None) -> dict[str, Tensor]:
    """Layers of [B, 2, 4, 8] 2-byte elements, 128 bytes a page, side by side in each block."""
    step = 64 * layers
    return {f"layers.{i}": Tensor((blocks, 2, 4, 8), (step, 32, 8, 1), size or 2 * step * blocks, offset=64 * i)
            for i in range(layers)}


def test_sound_tensors_give_notes_only():
    assert {one.severity for one in lint(packed())} == {"note"}


def test_a_tensor_that_leaves_its_storage():
    found = lint(packed(size=3_840 - 2 * 64))
    assert [(one.rule, one.coordinate) for one in found if one.is_error] == [
        ("view-outside", {"layer": "layers.2", "block": 9})]
    assert found[0].numbers["past_end_bytes"] == 128


def test_vllm_54877_the_split_view_asks_for_more_than_the_buffer():
    # 4 blocks of 81,920 bytes, split in two kernel blocks each that step by the padded page.
    view = Tensor((8, 1, 64, 256), (40_960, 16_384, 256, 1), 327_680)
    found = next(one for one in lint({"layers.0": view}) if one.is_error)
    assert found.rule == "view-outside" and found.numbers["end"] == 606_208
    assert found.numbers["storage_bytes"] == 327_680 and found.coordinate["block"] == 4


def test_tensors_that_share_bytes_and_those_that_only_interleave():
    views = packed()
    assert "shared-bytes" not in rules(lint(views))
    views["layers.1"].offset -= 1
    found = next(one for one in lint(views) if one.rule == "shared-bytes")
    assert found.numbers == {"pairs": 1, "first": "layers.0", "second": "layers.1"} and found.severity == "warning"


def test_a_broadcast_tensor_gives_several_coordinates_one_byte():
    assert "self-overlap" in rules(lint({"a": Tensor((4, 2, 4, 8), (64, 0, 8, 1), 4096)}))


def test_limits_alignment_and_singletons_of_a_tensor():
    # xpu-kernels#445: 1,039,680 bytes a block.
    far = lint({"a": Tensor((3_000, 1, 16, 64), (1_039_680, 1_032, 64, 1), 1_039_680 * 3_000, item=1, base=4_100)})
    assert [one.numbers["first_block"] for one in far if one.rule == "int32-offset"] == [2_066]
    assert all("bytes (= elements)" in one.message for one in far if one.rule == "int32-offset")
    (off,) = (one for one in far if one.rule == "misaligned")
    assert off.numbers["row"] == {"aligned_to": 4, "residues": [4]}
    (singleton,) = (one for one in far if one.rule == "singleton-stride")
    assert singleton.numbers == {"axis": "head", "stride": 1_032, "remainder_bytes": 8}


def test_an_older_cache_counts_its_longest_axis_as_blocks():
    planes = lint({"a": Tensor((2, 100_000, 16, 8, 128), (1_638_400_000, 16_384, 1_024, 128, 1), 6_553_600_000)})
    first = [one.numbers["first_block"] for one in planes if one.rule == "int32-offset"]
    assert first == [65_536, 131_072]


def test_tensors_of_several_storages():
    views = packed(2)
    views["layers.1"].base += 1 << 30
    assert "storages" in rules(lint(views))


@pytest.mark.parametrize("fields", [
    {"shape": ("4",)}, {"shape": (4, 4)}, {"shape": None}, {"shape": (-1, 2, 3, 4)}, {"item": 0}, {"item": 2.5},
    {"offset": -1}, {"strides": (1, 1, 1, float("nan"))}, {"size": None}, {"size": True}])
def test_odd_tensors_are_one_clear_error(fields):
    made = Tensor(**({"shape": (4, 1, 1, 8), "strides": (8, 8, 8, 1), "size": 64} | fields))
    with pytest.raises(kv.LayoutError, match="tensors"):
        lint({"a": made})


def test_empty_and_huge_tensors():
    assert lint({"a": Tensor((0, 1, 1, 8), (8, 8, 8, 1), 0)}) == []
    assert "view-outside" in rules(lint({"a": Tensor((1 << 62, 1, 1, 8), (8, 8, 8, 1), 64)}))
    assert lint({"a": Tensor((), (), 64)}) is not None


def test_an_allocated_cache_and_its_views():
    torch = pytest.importorskip("torch")
    plan = kv.make_plan(kv.Selection(model="gemma3-hybrid-tiny", layout="BLNHC", num_blocks=6))
    with kv.allocate_kv_cache(plan.config, "cpu", kernel_block_sizes=plan.kernel_block_sizes) as cache:
        assert not [one for one in lint(cache) if one.is_error]
        assert not [one for one in lint(cache.views) if one.is_error]
        layer, view = next(iter(cache.views.items()))
        assert live_view(layer, view).strides == tuple(2 * n for n in view.stride())
        cache.views[layer] = torch.as_strided(view, view.shape, view.stride(), view.storage_offset() + 8)
        (found,) = (one for one in lint(cache) if one.is_error)
        assert found.rule == "view-differs" and found.coordinate == {"layer": layer}
        assert found.numbers["offset"] == found.numbers["expected_offset"] + 16
    assert "freed" in rules(lint(cache))


def test_a_cache_on_meta_and_one_of_each_preset():
    pytest.importorskip("torch")
    for name in kv.presets():
        plan = kv.make_plan(kv.Selection(model=name, num_blocks=70_000))
        cache = kv.allocate_kv_cache(plan.config, "meta", kernel_block_sizes=plan.kernel_block_sizes,
                                     interiors=plan.interiors)
        assert not [one for one in [*lint(cache), *lint(cache.views)] if one.is_error]
