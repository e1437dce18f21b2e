"""The Verify button: it proves the allocated cache, shows where it is wrong, and can be stopped."""

import threading

import numpy as np
import pytest
import torch

import kvlayout as kv
from kvlayout_widgets import Explorer, verification
from kvlayout_widgets.figures.mismatches import mismatches_figure


@pytest.fixture
def shown():
    explorer = Explorer(model="Qwen/Qwen3-0.6B", num_blocks=64, layout="LBNHC")
    yield explorer
    explorer.allocation.verification.stop.click()
    explorer.allocation.verification.wait()
    explorer.state.free()


def proven(shown) -> str:
    shown.allocation.verify.click()
    shown.allocation.verification.wait()
    return shown.allocation.verification.text.value


def test_a_right_cache(shown):
    panel = shown.allocation
    assert panel.verify.disabled
    panel.allocate.click()
    assert not panel.verify.disabled
    assert "✓ All 117,440,512 bytes that were written through the views" in proven(shown)
    assert panel.verification.report.ok and panel.verification.details.layout.display == "none"
    assert not (panel.verify.disabled or panel.free.disabled or panel.allocate.disabled)
    panel.free.click()
    assert panel.verification.text.value == "" and panel.verify.disabled


def test_a_wrong_stride_is_shown_with_its_place(shown):
    shown.allocation.allocate.click()
    views = shown.state.cache.views
    name = list(views)[5]
    view = views[name]
    views[name] = view.as_strided(view.shape, (view.stride(0), 16 * 256, 256, 1), view.storage_offset())
    text = proven(shown)
    report = shown.allocation.verification.report
    assert "✗ " in text and "bytes differ" in text and name in text
    assert bytes(shown.allocation.verification.picture.value).startswith(b"\x89PNG")
    assert np.flatnonzero(report.map.wrong_bytes.sum(axis=1)).tolist() == [5]
    for theme in ("light", "dark"):
        figure = mismatches_figure(report, theme=theme)
        assert "Where wrong bytes lie" in figure.alt or name in figure.alt
    with pytest.raises(kv.LayoutError, match="nothing to draw"):
        mismatches_figure(kv.verify(kv.allocate_kv_cache(shown.plan.config, "cpu")))


def test_it_can_be_stopped_and_meanwhile_nothing_frees_the_cache(shown, monkeypatch):
    panel, started, go = shown.allocation, threading.Event(), threading.Event()
    real = verification.verify

    def slow(cache, *, progress):
        started.set()
        go.wait(60)
        return real(cache, progress=progress)

    monkeypatch.setattr(verification, "verify", slow)
    panel.allocate.click()
    panel.verify.click()
    assert started.wait(60)
    assert panel.verify.disabled and panel.free.disabled and panel.allocate.disabled and panel.poke.disabled
    assert panel.verification.stop.layout.display is None
    panel.verification.stop.click()
    go.set()
    panel.verification.wait()
    assert "Stopped: nothing is proven" in panel.verification.text.value
    assert int(torch.count_nonzero(shown.state.cache.buffer)) == 0
    assert not panel.free.disabled and panel.verification.stop.layout.display == "none"


def test_what_goes_wrong_is_said_beside_the_button(shown):
    shown.allocation.allocate.click()
    shown.state.cache.views.popitem()
    assert "has no view" in proven(shown)


def test_there_is_nothing_to_verify_on_meta():
    shown = Explorer(model="Qwen/Qwen3-0.6B", num_blocks=64, device="meta")
    shown.allocation.allocate.click()
    assert shown.allocation.verify.disabled
    shown.state.free()


def test_a_cache_freed_by_a_script_while_it_is_proven_is_said_to_be(shown, monkeypatch):
    panel, real = shown.allocation, verification.verify

    def verify(cache, progress):
        return real(cache, progress=lambda done, total: (cache.free(), progress(done, total)))

    monkeypatch.setattr(verification, "verify", verify)
    panel.allocate.click()
    assert "was freed while it was being proven" in proven(shown)
    assert not panel.verification.is_running and panel.verification.report is None


def test_wrong_padding_is_counted_though_no_layers_bins_show_it():
    spec = kv.FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype="bfloat16", page_size_padded=8192)
    group = kv.KVCacheGroupSpec(["a"], spec)
    config = kv.get_kv_cache_config_from_groups([group], 0, "LBNHC", num_gpu_blocks_override=4)
    with kv.allocate_kv_cache(config, "cpu") as cache:
        view = cache.views["a"]
        cache.views["a"] = view.as_strided(view.shape, view.stride(), view.storage_offset() + 64)
        report = kv.verify(cache)
    hidden = report.mismatched_bytes - report.map.wrong_bytes.sum()
    assert hidden > 0 and f"{hidden:,}" in mismatches_figure(report).alt


def test_what_was_proven_or_written_names_its_cache_once_another_plan_is_shown(shown):
    panel = shown.allocation
    panel.allocate.click()
    proven(shown)
    panel.poke.click()
    texts = panel.verification.text, panel.proof
    assert all("kvl-good" in one.value and "older" not in one.value for one in texts)
    shown.choose(layout="BLNHC")
    for one in texts:
        assert "Of the older cache (Qwen3 0.6B, LBNHC, 112 MiB), not of the plan that is shown: " in one.value
        assert "kvl-good" not in one.value
    shown.choose(layout="LBNHC")
    assert all("kvl-good" in one.value and "older" not in one.value for one in texts)
    shown.choose(layout="BLNHC")
    panel.allocate.click()
    assert all(one.value == "" for one in texts)


def test_a_failed_proof_of_an_older_cache_stays_red(shown):
    shown.allocation.allocate.click()
    name, view = list(shown.state.cache.views.items())[5]
    shown.state.cache.views[name] = view.as_strided(view.shape, (view.stride(0), 16 * 256, 256, 1),
                                                    view.storage_offset())
    proven(shown)
    shown.choose(num_blocks=65)
    text = shown.allocation.verification.text.value
    assert "kvl-refused" in text and "Of the older cache" in text and "✗ " in text
