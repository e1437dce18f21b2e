"""The explorer in layouts that vLLM doesn't have, and with a backend that declares one: every tab and panel draws."""

import pytest

import kvlayout as kv
from kvlayout.bench import PrototypeBackend
from kvlayout_widgets import Explorer


class Mine(PrototypeBackend):
    layouts = ("HBLNC", "BLHNC")
    page_alignment = 4096


@pytest.mark.parametrize("layout", ["HBLNC", "CNHBL", "BLCNH"])
@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "gemma3-hybrid-tiny"])
def test_every_tab(model, layout):
    shown = Explorer(kv.Selection(model=model, backend="Mine", layout=layout, num_blocks=16), backends=[Mine])
    assert shown.plan.layout == kv.PhysicalLayout(layout)
    for title, tab in shown.tabs.items():
        shown.show(title)
        for panel in getattr(tab, "panels", [None]):
            if panel is not None:
                tab.show(panel)
            shown.refresh()
            assert "Error" not in shown._status.value, (title, panel, shown._status.value)


def test_the_resolver_takes_what_vllm_has_of_a_backends_layouts():
    shown = Explorer(kv.Selection(backend="Mine", num_blocks=16), backends=[Mine])
    assert shown.plan.layout.name == "BLHNC"
    assert not shown.choose(requested="LBNHC") and "LBNHC" in str(shown.state.problem)
