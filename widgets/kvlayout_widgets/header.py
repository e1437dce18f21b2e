"""What is always visible: the resolved layout and why, sizes, the device's memory, and what is allocated."""

from __future__ import annotations

from kvlayout.errors import LayoutError
from kvlayout.memory.device import memory_info
from kvlayout.plan import Plan
from kvlayout_widgets.figures.theme import exact_bytes, format_bytes
from kvlayout_widgets.html import layout_chips, paragraph, span
from kvlayout_widgets.state import State


def header_html(state: State) -> str:
    """Return the header of the state's plan."""
    plan = state.plan
    if plan is None:
        return '<div class="kvl-header">Nothing is planned yet.</div>'
    sizes = "".join(_figure(*size) for size in _sizes(plan))
    return (f'<div class="kvl-header"><div class="kvl-top"><span>{layout_chips(plan.layout.name)}'
            f'{span(plan.resolution.why, "why")}</span>{_figure(*_device(plan.selection.device))}</div>'
            f'<div class="kvl-figures">{sizes}</div></div>')


def _figure(name: str, value: str, tooltip: str) -> str:
    return f'<span class="kvl-figure">{span(name, "name", tooltip)} <b>{span(value, "value")}</b></span>'


def _sizes(plan: Plan) -> list[tuple[str, str, str]]:
    pages = sorted({region.page_size_bytes for region in plan.address_map.regions})
    shown = format_bytes(pages[0]) if len(pages) == 1 else \
        f"{format_bytes(pages[0])} to {format_bytes(pages[-1])} ({len(pages)} sizes)" if pages else "none"
    groups, layers = len(plan.groups), len(plan.address_map.layers)
    return [
        ("block", exact_bytes(plan.bytes_per_block), "Bytes that one block id stands for on this rank, all layers"),
        ("page", shown, "page_size_bytes: one block of one layer"),
        ("pool", f"{exact_bytes(plan.config.size_bytes)} in {plan.config.num_blocks:,} blocks",
         "KVCacheTensor.size: the one backing allocation of this rank"),
        ("layers", f"{layers:,} in {groups} group{'s' if groups != 1 else ''}",
         "Layers of this rank, and the KVCacheGroupSpecs that share block tables"),
    ]


def _device(device: str) -> tuple[str, str, str]:
    try:
        info = memory_info(device)
    except LayoutError as error:
        return device, "is not on this machine: shapes and addresses only", str(error)
    if info is None:
        return device, "has no memory: shapes and addresses only", "The meta device allocates nothing"
    free, total = info
    return (device, f"{format_bytes(free)} free, {format_bytes(total - free)} used",
            "Memory of the chosen device, as of the last change")


def allocation_html(state: State) -> str:
    """Return what is allocated, and whether the picture shows something else."""
    others = sum(cache.nbytes for cache in state.other_caches())
    text = paragraph(f"Other explorers of this kernel hold {format_bytes(others)}.", "warn") if others else ""
    if state.cache is None:
        return paragraph("Nothing is allocated here." if others else "Nothing is allocated.", "note") + text
    text = paragraph(repr(state.cache), "mono") + text
    older = older_cache_words(state)
    if older:
        text += paragraph(f"The picture shows another plan than the allocated one ({older}). Allocate again to "
                          "replace it.", "warn")
    return text


def older_cache_words(state: State) -> str:
    """Return which plan the allocated cache is of, where another one is shown; "" where it is this one."""
    if state.cache is None or not state.cache_is_stale:
        return ""
    plan = state.cache_plan
    return f"{plan.model.title}, {plan.layout.name}, {format_bytes(state.cache.nbytes)}"


def status_html(text: str, is_bad: bool) -> str:
    """Return the status line; nothing for an empty text."""
    return paragraph(text, "status kvl-status-bad" if is_bad else "status")
