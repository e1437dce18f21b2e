"""The Bench tab, as tests handle it."""

import html
import re

import kvlayout as kv
from kvlayout.capture.config_json import config_to_dict
from kvlayout_widgets import Explorer

QWEN = {"model": "Qwen/Qwen3-0.6B", "num_blocks": 64}


def opened(panel, backends=(), **choices):
    shown = Explorer(kv.Selection(**(QWEN | choices)), backends=backends)
    shown.show("Bench")
    bench = shown.tabs["Bench"]
    bench.show(panel)
    return shown, bench.panels[panel]


def plain(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", text))


def rows_of(text: str) -> list[list[str]]:
    """Cells of all rows, as plain text."""
    rows = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)]
    return [[plain(cell) for cell in row] for row in rows if row]


def is_fine(shown) -> bool:
    return "kvl-status-bad" not in shown._status.value


def captured(layout="LBNHC"):
    plan = kv.make_plan(kv.Selection(**QWEN, layout=layout))
    return {"kvlayout": 1, "kv_cache_config": config_to_dict(plan.config)}
