"""Views that are all in order by themselves, yet not where the map says: each is caught and spelt out."""

import numpy as np
import pytest
import torch

import kvlayout as kv
from kvlayout.memory import chunks
from tests.memory.test_probe import config


@pytest.mark.parametrize("layout", kv.KVCacheLayout.__members__)
def test_a_reader_that_takes_heads_for_states_is_spelt_out(layout):
    spec = kv.FullAttentionSpec(block_size=16, num_kv_heads=16, head_size=64, dtype="bfloat16")
    with kv.allocate_kv_cache(config(layout, spec=spec), "cpu") as cache:
        view = cache.views["0.1"]
        cache.views["0.1"] = view.transpose(1, 2)
        report = kv.verify(cache)
        assert not report.ok
        # All but the diagonal of 16 x 16 cells; single bytes agree by chance, one in 256.
        wrong = cache.nbytes // 3 * (1 - 1 / 16)
        assert 0.99 * wrong < report.mismatched_bytes <= wrong
        for one in report.mismatches:
            layer, block, head, state, byte = one.written_by
            assert (layer, block, head, state) == (one.layer, one.block, one.state, one.head)
            assert byte == one.byte // 8 * 8
        assert "which the view wrote for" in report.summary
        assert report.map.wrong_bytes.sum(axis=1).argmax() == 1 and (report.map.wrong_bytes[[0, 2]] == 0).all()


def test_two_layers_with_one_place_are_caught():
    with kv.allocate_kv_cache(config(), "cpu") as cache:
        cache.views["0.2"] = cache.views["0.0"]
        report = kv.verify(cache)
        # Which of the two wrote last isn't said; the place of 0.2 was written by neither.
        assert not report.ok and 2 in np.flatnonzero(report.map.wrong_bytes.sum(axis=1)).tolist()
        assert report.map.wrong_bytes[1].sum() == 0


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (2, 3, 0, 1), (1, 2, 3, 0), (0, 2, 1, 3)])
@pytest.mark.parametrize("layout", kv.KVCacheLayout.__members__)
def test_layers_that_have_changed_places_are_caught(layout, order):
    """Views that lie evenly are written as one; where they lie is still their own word, not the map's."""
    with kv.allocate_kv_cache(config(layout, layers=4), "cpu") as cache:
        views = list(cache.views.values())
        for name, place in zip(list(cache.views), order):
            cache.views[name] = views[place]
        report = kv.verify(cache)
        assert not report.ok
        moved = [layer for layer, place in enumerate(order) if layer != place]
        assert np.flatnonzero(report.map.wrong_bytes.sum(axis=1)).tolist() == moved
        first = report.mismatches[0]
        assert order[int(first.written_by[0][2:])] == int(first.layer[2:])


def test_a_view_that_writes_into_padding_is_caught_there():
    spec = kv.FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype="bfloat16", page_size_padded=8192)
    with kv.allocate_kv_cache(config(spec=spec, layers=1), "cpu") as cache:
        assert kv.verify(cache).padding_bytes == cache.nbytes // 2
        view = cache.views["0.0"]
        start = view.storage_offset() + 2048
        cache.views["0.0"] = view.as_strided(view.shape, view.stride(), start)
        report = kv.verify(cache)
        assert report.mismatches[0].layer == "0.0"
        assert 0.98 * cache.nbytes < report.mismatched_bytes <= cache.nbytes
        assert "padding" not in report.mismatches[0].field
        # Only the padding of the first pages is left to name when the owned bytes are right.
        cache.views["0.0"] = view
    both = kv.allocate_kv_cache(config(spec=spec, layers=1), "cpu")
    with both as cache:
        real = chunks.Chunks.write

        def write(self, count):
            real(self, count)
            cache.buffer[8192 + 5000] = 7

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunks.Chunks, "write", write)
            report = kv.verify(cache)
        (one,) = report.mismatches
        assert (one.layer, one.offset, one.field, report.mismatched_bytes) == (None, 13192, "padding", 1)
        assert "byte 13,192 (padding): expected 0000000000000000, found 07" in report.summary


def test_a_view_of_another_storage_or_shape_is_caught():
    with kv.allocate_kv_cache(config(), "cpu") as cache:
        cache.views["0.1"] = cache.views["0.1"].clone()
        assert not kv.verify(cache).ok
        cache.views["0.1"] = cache.views["0.0"][:3]
        with pytest.raises(kv.LayoutError, match=r"0\.1.*shape \(3, 2, 16, 128\).*\(6, 2, 16, 128\)"):
            kv.verify(cache)
        right = cache.views["0.0"]
        for wrong in (right[0], right.to("meta"), right.view(torch.int16).numpy(), 7):
            cache.views["0.1"] = wrong
            with pytest.raises(kv.LayoutError, match=r"0\.1.*(has the shape|lies on|must be a strided tensor)"):
                kv.verify(cache)
        del cache.views["0.1"]
        with pytest.raises(kv.LayoutError, match="has no view"):
            kv.verify(cache)
