"""The Clinic tab in a real browser: each panel is asked a question, and answers."""

import pytest

from kvlayout import Selection, make_plan
from kvlayout.clinic import fingerprint
from tests.browser.explorer_page import ExplorerPage

pytestmark = pytest.mark.browser

LOG = """(EngineCore pid=1) INFO 03-07 08:18:10 [kv_cache_utils.py:1314] GPU KV cache size: 65,536 tokens
INFO 03-07 08:18:11 [kv_cache_utils.py:1319] Maximum concurrency for 2,048 tokens per request: 368.57x
INFO Using HND KV cache layout for FLASHINFER backend."""


def test_the_panels(lab, lab_page):
    explorer = ExplorerPage(lab, lab_page, "Explorer(num_blocks=4096, layout='BLNHC')")
    explorer.tab("Clinic")
    explorer.root.get_by_text("0 errors, 3 warnings").wait_for()
    explorer.notebook.screenshot("clinic-lints", of=explorer.root)

    explorer.panel("Address")
    explorer.fill("Base", "0x7f0000000000")
    explorer.fill("Address", "0x7f0004180000")
    explorer.root.get_by_role("cell", name="model.layers.12.self_attn.attn").wait_for()
    explorer.notebook.screenshot("clinic-address", of=explorer.root)
    explorer.root.get_by_role("button", name="Select in all tabs").click()
    explorer.notebook.wait_idle()
    assert "layer 12 · block 37" in explorer.readout
    explorer.fill("Address", "nonsense")
    explorer.root.get_by_text("is not an address").wait_for()

    explorer.panel("Names")
    plan = make_plan(Selection(num_blocks=4096, layout="BLNHC"))
    assert fingerprint(plan.address_map) in explorer.root.locator("pre.kvl-code:visible").first.inner_text()
    explorer.notebook.screenshot("clinic-names", of=explorer.root)

    explorer.panel("Log")
    field = explorer.root.locator("textarea:visible")
    field.fill(LOG)
    field.blur()
    explorer.root.get_by_text("1 of 3 agree").wait_for()
    explorer.notebook.screenshot("clinic-log", of=explorer.root)
    assert explorer.root.locator(".kvl-status-bad").count() == 0
