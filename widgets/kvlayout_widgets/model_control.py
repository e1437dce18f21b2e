"""The control for the model: a preset, or the text of a Hugging Face config.json."""

from __future__ import annotations

import json

import ipywidgets as widgets

from kvlayout.errors import LayoutError
from kvlayout.selection import decode_json
from kvlayout_widgets.catalogue import FROM_CONFIG
from kvlayout_widgets.control import WIDTH, Control, choose


def model_control(options: list[tuple[str, object]]) -> Control:
    """Return the control; a config.json is uploaded or pasted below the list."""
    chosen = widgets.Dropdown(options=options, layout=widgets.Layout(width=WIDTH))
    text = widgets.Textarea(placeholder="Paste a config.json here", tooltip="A Hugging Face config.json",
                            continuous_update=False,
                            layout=widgets.Layout(width="302px", height="110px"))
    upload = widgets.FileUpload(accept=".json", description="config.json", tooltip="Read a file of this computer",
                                layout=widgets.Layout(width="140px"))
    own = widgets.VBox([upload, text], layout=widgets.Layout(display="none"))

    def uploaded(change) -> None:
        if change["new"]:
            text.value = bytes(change["new"][0]["content"]).decode("utf-8", "replace")

    def read() -> dict:
        own.layout.display = None if chosen.value == FROM_CONFIG else "none"
        if chosen.value != FROM_CONFIG:
            return {"model": chosen.value}
        if not text.value.strip():
            raise LayoutError("model", "", "is empty", "Paste the text of a config.json, or upload the file")
        config = decode_json(text.value, "model")
        if not isinstance(config, dict):
            raise LayoutError("model", config, "must be a JSON object", "Give the whole config.json of a model")
        return {"model": config}

    def write(choices: dict) -> None:
        model = choices["model"]
        own.layout.display = None if isinstance(model, dict) else "none"
        if isinstance(model, dict):
            chosen.value = FROM_CONFIG
            if not says(model):
                text.value = json.dumps(model, indent=2)
        else:
            choose(chosen, model)

    def says(model: dict) -> bool:
        try:
            return decode_json(text.value, "model") == model
        except LayoutError:
            return False

    upload.observe(uploaded, "value")
    control = Control(["model"], [chosen], read, write, below=[own])
    control.parts = (chosen, text)
    return control
