"""The Clinic tab in a real browser: each panel is asked a question, and answers."""

import re

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


def test_slots_shapes_and_groups(lab, lab_page):
    explorer = ExplorerPage(lab, lab_page, "Explorer(model='google/gemma-3-27b-it', num_blocks=512)")
    explorer.page.set_viewport_size({"width": 1500, "height": 1900})
    explorer.tab("Clinic")
    explorer.panel("Slots")
    explorer.fill("Slot", "1,661")
    explorer.fill("Position", "300")
    explorer.fill("Block id", "5")
    explorer.fill("Ranks", "4")
    explorer.fill("Blocks", "5, 9, 12-15")
    explorer.root.locator("td:visible", has_text=re.compile("^103$")).first.wait_for()
    explorer.notebook.screenshot("clinic-slots", of=explorer.root)

    explorer.panel("Shapes")
    field = explorer.root.locator("textarea:visible")
    field.fill("torch.Size([2, 2, 16, 2, 128])")
    field.blur()
    explorer.root.get_by_text("ambiguous").first.wait_for()
    explorer.notebook.screenshot("clinic-shapes", of=explorer.root)

    explorer.panel("Groups")
    explorer.picture.wait_for()
    explorer.notebook.screenshot("clinic-groups", of=explorer.root)
    assert explorer.root.locator(".kvl-status-bad").count() == 0


def test_the_transfer_tab(lab, lab_page):
    explorer = ExplorerPage(lab, lab_page, "Explorer(num_blocks=64, layout='BLNHC')")
    explorer.page.set_viewport_size({"width": 1500, "height": 1900})
    explorer.tab("Transfer")
    assert "1,835,008" in explorer.picture.get_attribute("alt")
    explorer.notebook.screenshot("transfer-one", of=explorer.root)
    explorer.panel("Two sides")
    explorer.picture.wait_for()
    assert "✓" in explorer.root.inner_text()
    explorer.root.locator("select", has_text="no layout is mistaken").select_option(label="the target is taken for")
    explorer.notebook.wait_idle()
    explorer.root.get_by_text("✗").first.wait_for()
    explorer.notebook.screenshot("transfer-two", of=explorer.root)


def test_the_formula_panel(lab, lab_page):
    explorer = ExplorerPage(lab, lab_page, "Explorer(num_blocks=64, layout='LBNHC')")
    explorer.tab("Clinic")
    explorer.panel("Formula")
    explorer.root.get_by_text("Type the byte offset that your code computes").wait_for()
    classic = explorer.page.locator("option", has_text="NHD read as HND")
    explorer.root.locator("select:visible", has=classic).select_option(label="NHD read as HND")
    explorer.root.get_by_text("it lies at 4,096, the formula gives 512").first.wait_for()
    explorer.notebook.wait_idle()
    explorer.page.mouse.click(*explorer.ask_point("explorer.visible.visible.picture.axes[1]", 1, 0))
    explorer.notebook.wait_idle()
    assert "block 0 · head slot 0 · state 1" in explorer.readout
    explorer.notebook.screenshot("clinic-formula", of=explorer.root)
    explorer.root.get_by_text("Names that a formula may use").click()
    explorer.root.get_by_role("cell", name="kernel_blocks_per_block", exact=True).wait_for()
    explorer.fill("Offset", "block * strde")
    explorer.root.get_by_text("has the name 'strde', which is not known").wait_for()
    explorer.notebook.screenshot("clinic-formula-refused", of=explorer.root)
    assert explorer.root.locator(".kvl-status-bad").count() == 0
