"""Groups: one block as each group would fill it, and what it costs that all groups' pages are equally large."""

from __future__ import annotations

from html import escape

from kvlayout.address import AddressMap
from kvlayout.clinic import Strip, containment, padding_shares, page_losses
from kvlayout.clinic.block_bytes import kernel_ratio
from kvlayout.spec import AttentionSpec, MambaSpec
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.strips import DRAWN, StripsFigure
from kvlayout_widgets.figures.theme import exact_bytes
from kvlayout_widgets.figures.wording import group_words, layer_number
from kvlayout_widgets.html import paragraph, table
from kvlayout_widgets.panels.picture_panel import PicturePanel
from kvlayout_widgets.slider import WindowSlider
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act

_LAYERS = 16  # numbers that are listed


class GroupsPanel(PicturePanel):
    """The strips of the selected block, and below them the same in numbers."""

    title = "Groups"
    asks = "Who owns this block in each group, and what is lost to equal page sizes?"

    def __init__(self, state: State, act: Act):
        self.first_row = WindowSlider("First group", "The first group that is drawn", self.later)
        super().__init__(state, act, (self.first_row.widget,),
                         "The selected block, as each group would fill it; the slider of block, above the tabs, "
                         "chooses another. Click a byte to select it in that group.")
        self._shown: Coordinate | None = None

    def html(self) -> str:
        return groups_html(self.state.plan.address_map, self._drawing.block, self._drawing.strips)

    def make(self, theme: str) -> StripsFigure:
        return StripsFigure(theme)

    def update(self, drawing: StripsFigure) -> None:
        selected, address_map = self.state.coordinate, self.state.plan.address_map
        group = address_map.region(selected.layer).group
        if selected != self._shown:
            groups = address_map.config.kv_cache_groups[:group]  # those without layers here have no row
            self.first_row.reach(sum(bool(one.layer_names) for one in groups), DRAWN)
        self._shown = selected
        drawing.update(address_map, selected.block // kernel_ratio(address_map, group), selected=selected,
                       first_row=self.first_row.value, title=self.state.plan.model.title)
        self.first_row.set(drawing.first_row, drawing.total_rows - drawing.num_rows)

    def hovered(self, x: float, y: float, axes: int) -> str:
        if axes != 0:
            return ""
        return super().hovered(x, y, axes) or self._drawing.gap_words(x, y)


def groups_html(address_map: AddressMap, block: int, strips: list[Strip]) -> str:
    """Return what each group makes of a block as a table, and what equal pages cost in sentences."""
    losses = page_losses(address_map).groups
    rows = []
    for strip in strips:
        loss = losses[strip.group]
        share = f" ({100 * loss.share:.3g} % of its pages)" if loss.share else ""
        rows.append((escape(group_words(address_map, strip.group)), escape(_layers(strip.layer_names)),
                     f"{loss.block_size:,}", escape(exact_bytes(strip.useful_bytes)),
                     f"{strip.page_padding_bytes:,}{share}", f"{strip.unused_bytes:,}",
                     f"{100 * strip.padding_share:.3g} %", _groups(strip.shared_with)))
    header = ("if the block is that of", "it holds layers", "tokens a block", "content (bytes)",
              "page padding (bytes)", "not used (bytes)", "of the block empty", "shares bytes with groups")
    crossing = max((int(strip.crossing[1].sum()) for strip in strips), default=0)
    warning = paragraph(f"✗ Groups cross: {crossing:,} of these bytes hold content of other block ids, which may be "
                        "lent out at the same time.", "refused") if crossing else ""
    return table(header, rows, f"Who owns block {block:,}") + warning + "".join(
        paragraph(one, "line") for one in cost_sentences(address_map))


def cost_sentences(address_map: AddressMap) -> list[str]:
    """Return whether anything is shared, what equal page sizes cost, and why blocks are as long as they are."""
    losses = page_losses(address_map)
    present = [one for one in losses.groups if one.kinds]
    text = [_owner_sentence(address_map, len(present))]
    lost = sum(one.page_bytes - one.content_bytes for one in losses.groups)
    if lost:
        pages = sum(one.page_bytes for one in losses.groups)
        why = "lost to equal page sizes" if len(present) > 1 else "padding"
        text.append(f"{100 * losses.share:.3g} % of the pages is {why}: {lost:,} of {pages:,} bytes, each group "
                    "counted with one block.")
    else:
        text.append("No page has padding: equal page sizes cost nothing.")
    text += _inflated(address_map)
    for one in padding_shares(address_map):
        if one.group is None and one.share > 0:
            text.append(f"No group ever uses {one.block_bytes - one.content_bytes:,} of a block's "
                        f"{one.block_bytes:,} bytes ({100 * one.share:.3g} %).")
    return text


def _owner_sentence(address_map: AddressMap, groups: int) -> str:
    """Whose the bytes of a block id are; the overlay is only safe where blocks of different ids share none."""
    is_contained = containment(address_map).is_contained
    if is_contained:
        return "One group owns every block: nothing is shared." if groups == 1 else \
            f"Each block id is one of these {groups} groups' at a time; the others' pages over the same bytes are " \
            "then nobody's."
    of = "of one group" if groups == 1 else f"of one of these {groups} groups at a time"
    if is_contained is None:
        return f"Each block id is {of}; whether blocks of other ids hold some of its bytes too isn't decided."
    return f"Each block id is {of}, but its bytes aren't its own: blocks of other ids hold some at the same " \
           "time (panel Lints has the first of them)."


def _inflated(address_map: AddressMap) -> list[str]:
    """An attention block that is long because its page must hold a recurrent state."""
    specs = list(address_map.config.layer_specs.values())
    states = [spec for spec in specs if isinstance(spec, MambaSpec)]
    attention = [spec for spec in specs if isinstance(spec, AttentionSpec) and spec.block_size]
    if not states or not attention:
        return []
    state = max(spec.unpadded_page_size_bytes for spec in states)
    main = max(attention, key=lambda spec: spec.page_size_bytes)
    if main.page_size_bytes not in {spec.page_size_bytes for spec in states}:
        return []
    token = main.unpadded_page_size_bytes / main.block_size
    return [f"An attention block has {main.block_size:,} tokens of {token:,.4g} bytes a layer, so that its page of "
            f"{main.page_size_bytes:,} bytes is as large as that of a recurrent state, whose content is {state:,} "
            "bytes."]


def _layers(names: tuple[str, ...]) -> str:
    numbers = [layer_number(name) for name in names]
    if len(set(numbers)) < len(numbers):
        return f"{names[0]} to {names[-1]}"
    return ", ".join(numbers) if len(numbers) <= _LAYERS else f"{numbers[0]} to {numbers[-1]}"


def _groups(groups: tuple[int, ...]) -> str:
    return ", ".join(map(str, groups[:_LAYERS])) + (" …" if len(groups) > _LAYERS else "") if groups else "none"
