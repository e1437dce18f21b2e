"""Labelled choices of a panel: a list and a line of text, of stated pixels."""

from __future__ import annotations

import ipywidgets as widgets


def dropdown(description: str, options: list, tooltip: str, label_width: int, width: int, **rest) -> widgets.Dropdown:
    """Return a list to choose from, ``width`` pixels wide, of which the label takes ``label_width``."""
    return widgets.Dropdown(
        options=options, description=description, tooltip=tooltip, layout=widgets.Layout(width=f"{width}px"),
        style={"description_width": f"{label_width}px"}, **rest)


def text_field(description: str, tooltip: str, label_width: int, width: int, *, value: str = "",
               placeholder: str = "any") -> widgets.Text:
    """Return a line of text that counts once it is finished; pixels as in :func:`dropdown`."""
    return widgets.Text(description=description, value=value, placeholder=placeholder, tooltip=tooltip,
                        continuous_update=False, layout=widgets.Layout(width=f"{width}px"),
                        style={"description_width": f"{label_width}px"})
