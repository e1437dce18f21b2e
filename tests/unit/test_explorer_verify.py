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
