"""The control for the model: a preset, or text: a Hugging Face config.json, a captured config, or a vLLM log."""

from __future__ import annotations

import json

import ipywidgets as widgets

from kvlayout.captured import capture_of_text
from kvlayout.errors import LayoutError
from kvlayout.selection import decode_json
from kvlayout_widgets.catalogue import FROM_CONFIG
from kvlayout_widgets.control import WIDTH, Control, choose


def model_control(options: list[tuple[str, object]]) -> Control:
    """Return the control; a config.json is uploaded or pasted below the list."""
    chosen = widgets.Dropdown(options=options, layout=widgets.Layout(width=WIDTH))
    text = widgets.Textarea(placeholder="Paste a config.json, a captured cache's JSON, or the lines of a vLLM log "
                            "that print a KVCacheConfig", tooltip="A config.json, a capture, or a log",
                            continuous_update=False,
                            layout=widgets.Layout(width="302px", height="110px"))
    upload = widgets.FileUpload(accept=".json,.txt,.log", description="Read a file",
                                tooltip="A config.json, a capture or a log of this computer",
                                layout=widgets.Layout(width="140px"))
    own = widgets.VBox([upload, text], layout=widgets.Layout(display="none"))
    written = None

    def uploaded(change) -> None:
        if change["new"]:
            text.value = bytes(change["new"][0]["content"]).decode("utf-8", "replace")

    def read() -> dict:
        own.layout.display = None if chosen.value == FROM_CONFIG else "none"
        if chosen.value != FROM_CONFIG:
            return {"model": chosen.value}
        if not text.value.strip():
            return {}  # nothing was given yet
        return {"model": read_model(text.value)}

    def write(choices: dict) -> None:
        nonlocal written
        model, before = choices["model"], written
        written = model
        if chosen.value == FROM_CONFIG and not text.value.strip() and model == before:
            return  # the text is still awaited
        own.layout.display = None if isinstance(model, dict) else "none"
        if isinstance(model, dict):
            chosen.value = FROM_CONFIG
            if not says(model):
                text.value = json.dumps(model, indent=2)
        else:
            choose(chosen, model)

    def says(model: dict) -> bool:
        try:
            return read_model(text.value) == model
        except LayoutError:
            return False

    upload.observe(uploaded, "value")
    control = Control(["model"], [chosen], read, write, below=[own])
    control.parts = (chosen, text)
    return control


def read_model(text: str) -> dict:
    """Return the ``model`` of a Selection that a config.json, a capture's JSON or a vLLM log says; or LayoutError."""
    if not text.strip():
        raise LayoutError("model", "", "is empty", "Paste a config.json, a capture or a log, or read a file")
    if not text.lstrip().startswith(("{", "[")):
        return capture_of_text(text)
    config = decode_json(text, "model")
    if not isinstance(config, dict):
        raise LayoutError("model", config, "must be a JSON object", "Give the whole file")
    return config
