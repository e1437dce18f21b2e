"""Colours, hatches and number formats that every figure shares.

One fixed colour an axis (Okabe and Ito's palette, safe for colour-blind readers) and one style a kind of content.
Hue is never the only cue: each kind of content also has a hatch and a letter.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvlayout.errors import LayoutError

FONT = "DejaVu Sans"  # comes with matplotlib, so that a picture is the same everywhere

AXIS_COLOURS = {"L": "#0072B2", "B": "#E69F00", "H": "#009E73", "N": "#CC79A7", "C": "#56B4E9"}
AXIS_WORDS = {"L": ("layer", "layers"), "B": ("block", "blocks"), "H": ("head slot", "head slots"),
              "N": ("state", "states"), "C": ("byte of C", "bytes of C")}
AXIS_TITLES = {**{axis: f"{words[0]} {axis}" for axis, words in AXIS_WORDS.items()}, "C": "content C"}


@dataclass(frozen=True)
class Theme:
    """Colours of one background. ``axis_ink``: the axes' colours as text, dark or light enough to be read."""

    name: str
    background: str
    panel: str
    ink: str
    soft: str
    line: str
    unowned: str
    axis_ink: dict[str, str]


LIGHT = Theme("light", "#FFFFFF", "#F4F5F7", "#1A1D21", "#5B636D", "#C9CED6", "#E3E6EA",
              {"L": "#005A8F", "B": "#8A5A00", "H": "#00694C", "N": "#98406F", "C": "#1F6E9E"})
DARK = Theme("dark", "#15191E", "#20262D", "#ECEFF2", "#A3ACB7", "#4A545F", "#343C45",
             {"L": "#5DB4E6", "B": "#F2B84B", "H": "#4CCBA3", "N": "#E3A3C6", "C": "#8CCBF0"})
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def as_theme(theme: str | Theme) -> Theme:
    """Return a theme given as itself or by name; LayoutError for an unknown name."""
    if isinstance(theme, Theme):
        return theme
    if theme not in THEMES:
        raise LayoutError("theme", theme, "is not a theme", f"Use one of {', '.join(THEMES)}")
    return THEMES[theme]


@dataclass(frozen=True)
class FieldStyle:
    """How one kind of content looks: face colour, hatch (a key of ``raster.HATCHES``, "" for none), short letter."""

    face: str
    hatch: str
    letter: str


FIELD_STYLES = {
    "K": FieldStyle("#56B4E9", "", "K"),
    "V": FieldStyle("#D55E00", "/", "V"),
    "K scale": FieldStyle("#F0E442", ".", "s"),
    "V scale": FieldStyle("#B8A200", "x", "s"),
    "scale": FieldStyle("#F0E442", ".", "s"),
    "K norm": FieldStyle("#F0E442", "x", "n"),
    "V zero": FieldStyle("#8F7D00", "-", "z"),
    "latent": FieldStyle("#5E4FA2", "", "c"),
    "rope": FieldStyle("#D9A8D9", "\\", "r"),
    "state 0": FieldStyle("#44AA99", "", "0"),
    "state 1": FieldStyle("#882255", "/", "1"),
    "state 2": FieldStyle("#DDCC77", ".", "2"),
    "state 3": FieldStyle("#332288", "x", "3"),
    "packed": FieldStyle("#8C6D31", "-", "p"),
    "padding": FieldStyle("#9AA0A6", "\\", "·"),
}
_OTHERS = (("#7B9E3C", "|"), ("#C44E52", "-"), ("#4C72B0", "."), ("#CCB974", "/"), ("#64B5CD", "x"), ("#8172B2", "|"))


def field_style(name: str) -> FieldStyle:
    """Return the style of a field by its name.

    A name that isn't listed takes the look of what it is a kind of ("latent scale" is a scale, "index K" a K);
    anything else gets a look that depends on the name alone.
    """
    if name in FIELD_STYLES:
        return FIELD_STYLES[name]
    words = name.split()
    for kind in ("scale", "padding", "rope", "latent", "packed"):
        if any(word.startswith(kind) for word in words):
            return FIELD_STYLES[kind]
    for kind in ("K", "V"):
        if kind in words:
            return FIELD_STYLES[kind]
    face, hatch = _OTHERS[sum(name.encode()) % len(_OTHERS)]
    return FieldStyle(face, hatch, name[:1] or "?")


def rgb(colour: str) -> tuple[int, int, int]:
    """Return the 8-bit red, green and blue of "#RRGGBB"."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def mix(colour: str, other: str, share: float) -> str:
    """Return ``colour`` with ``share`` (0 to 1) of ``other`` in it."""
    mixed = (round(a + (b - a) * share) for a, b in zip(rgb(colour), rgb(other)))
    return "#" + "".join(f"{part:02X}" for part in mixed)


def ink_on(face: str) -> str:
    """Return white where it can be read well on ``face``, otherwise black."""
    # Relative luminance as in WCAG; below 0.278 white has a contrast of at least 3.2.
    linear = [((part / 255 + 0.055) / 1.055) ** 2.4 for part in rgb(face)]
    return "#FFFFFF" if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < 0.278 else "#101418"


def format_bytes(count: int) -> str:
    """Return bytes for reading, rounded to two places: "512 B", "1.75 MiB"."""
    value, unit = _scaled(count)
    return f"{count:,} B" if unit == "B" else f"{value:,.2f}".rstrip("0").rstrip(".") + f" {unit}"


def exact_bytes(count: int) -> str:
    """Return bytes exactly, and rounded where that helps: "65,536 B (64 KiB)"."""
    return f"{count:,} B" if abs(count) < 1024 else f"{count:,} B ({format_bytes(count)})"


def exact_address(offset: int) -> str:
    """Return a byte offset exactly, both ways: "68,681,728 B = 0x4180000"."""
    return f"{offset:,} B = {offset:#x}"


def step_bytes(step: int) -> str:
    """Return a signed distance in bytes: "+65,536 B"."""
    return f"{step:+,} B"


def byte_unit(size: int) -> tuple[int, str]:
    """Return (bytes, name) of the largest unit that ``size`` bytes hold at least one of."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024 ** power:
            return 1024 ** power, unit
    return 1, "B"


def _scaled(count: int) -> tuple[float, str]:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        # 1023.996 KiB would round to "1,024 KiB".
        if abs(value) < 1023.995:
            break
        value, unit = value / 1024, larger
    return value, unit
