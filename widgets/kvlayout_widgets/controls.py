"""The explorer's left column: every choice of a Selection as a control, with vLLM's own term as its tooltip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import ipywidgets as widgets

from kvlayout.captured import OPEN, capture_note, is_captured
from kvlayout.errors import LayoutError
from kvlayout.facts.machine import Machine
from kvlayout.memory.device import devices
from kvlayout.plan import DEFAULT_NUM_BLOCKS
from kvlayout.versions import VLLM_VERSIONS
from kvlayout_widgets import catalogue
from kvlayout_widgets.control import WIDTH, Control, amount, checkbox, choose, dropdown, integer, optional_integer
from kvlayout_widgets.html import span
from kvlayout_widgets.model_control import model_control
from kvlayout_widgets.state import State

# Arguments of the library's errors that belong to a control under another name.
_CONTROL_OF = {
    "kv_connector": "connector", "connectors": "connector", "backends": "backend", "spec": "kv_cache_dtype",
    "kv_manager_block_size": "block_size", "supported_layouts": "backend", "kv_cache_groups": "layout",
    "config": "model", "model_type": "model", "num_gpu_blocks_override": "num_blocks",
    "num_kv_heads": "tp_size", "dtype": "kv_cache_dtype", "kv_quant_mode": "kv_cache_dtype",
    "page_size_padded": "block_size", "tokens_per_state": "block_size",
}


class Controls:
    """All controls, in ``sections``.

    ``on_change`` is called with what they say, and with the error of one that can't be read.
    """

    def __init__(self, state: State, on_change: Callable[[dict, LayoutError | None], None]):
        self.state, self._on_change = state, on_change
        self._is_setting = False
        self._last: Control | None = None
        sections = _sections(state)
        self.all = [control for _, controls in sections for control in controls]
        self.by_argument = {argument: control for control in self.all for argument in control.arguments}
        self.sections = [widgets.VBox([widgets.HTML(span(title, "section")), *(one.row for one in controls)])
                         for title, controls in sections]
        for control in self.all:
            for part in control.parts:
                part.observe(lambda change, control=control: self._changed(control), "value")
        self.show()

    def _changed(self, control: Control) -> None:
        if self._is_setting:
            return
        self._last = control
        choices, problem = {}, None
        for one in self.all:
            try:
                choices |= one.read()
                one.is_readable = True
            except LayoutError as error:
                one.is_readable = False
                problem = problem or error
        self._on_change(choices, problem)

    def show(self) -> None:
        """Show the state's choices, what the catalogue offers for them, and why they are refused if they are."""
        blamed = self._blamed()
        self._is_setting = True
        try:
            self._offer()
            for control in self.all:
                # What is wrong stays as it was typed.
                if control.is_readable and control is not blamed:
                    control.write(self.state.choices)
        finally:
            self._is_setting = False
        captured = is_captured(self.state.choices["model"])
        # A captured pool has the blocks that it has.
        blocks = self.state.plan.config.num_blocks if captured and self.state.plan else DEFAULT_NUM_BLOCKS
        self.by_argument["num_blocks"].parts[0].placeholder = f"{blocks:,}"
        for control in self.all:
            control.disable(captured and not set(control.arguments) <= set(OPEN))
            control.refuse(str(self.state.problem) if control is blamed else "")
        self.by_argument["model"].note(capture_note(self.state.choices["model"]))
        plan = None if self.state.problem else self.state.plan
        self.by_argument["backend"].note(catalogue.platform_note(plan) if plan else "")
        self._explain_layout()

    def _offer(self) -> None:
        choices, own = self.state.choices, self.state.backends
        version, plan = choices["vllm_version"], self.state.plan
        resolution = None if plan is None or choices["layout"] is not None else plan.resolution
        for argument, options in (
            ("backend", catalogue.backend_options(version, own)),
            ("kv_cache_dtype", catalogue.kv_dtype_options(version, choices["backend"], own)),
            ("connector", catalogue.connector_options(version)),
            ("layout", catalogue.layout_options(resolution, self.state.refusals, choices["layout"])),
        ):
            choose(self.by_argument[argument].parts[0], choices[argument], options)

    def _blamed(self) -> Control | None:
        problem = self.state.problem
        return None if problem is None else self.control_of(problem.argument) or self._last

    def _explain_layout(self) -> None:
        forced = self.state.choices["layout"]
        reason = self.state.refusals.get(forced)
        note = ""
        if reason:
            note = (f"Forced. vLLM's resolver would refuse it: {forced} {reason}. Only a layout that is on "
                    "cache_config already is taken unchecked.")
        elif forced is not None:
            note = "Forced, as if it were on cache_config already: the resolver isn't asked."
        self.by_argument["layout"].note(note)

    def control_of(self, argument: str) -> Control | None:
        """Return the control that an error's argument belongs to, if there is one."""
        if argument == "kvlayout" or argument.startswith("kv_cache_config"):  # of a captured config
            argument = "model"
        return self.by_argument.get(_CONTROL_OF.get(argument, argument))


def machine_control() -> Control:
    """Return the control for the machine: what some backends declare depends on it."""
    known = dict(catalogue.MACHINES)
    widget = widgets.Dropdown(options=list(known), layout=widgets.Layout(width=WIDTH))

    def write(choices: dict) -> None:
        name = catalogue.machine_name(choices["machine"])
        known.setdefault(name, Machine(**choices["machine"]))
        choose(widget, name, [(one, one) for one in known])
    return Control(["machine"], [widget], lambda: {"machine": asdict(known[widget.value])}, write)


def _sections(state: State) -> list[tuple[str, list[Control]]]:
    version = state.choices["vllm_version"]
    return [
        ("Model", [
            model_control(catalogue.model_options()),
            dropdown("kv_cache_dtype", catalogue.kv_dtype_options(version, None)),
            integer("tp_size", 1, 4096),
            integer("pp_size", 1, 4096),
            integer("pp_rank", 0, 4095),
            optional_integer("max_model_len", (4096, 8192, 32768, 131072)),
        ]),
        ("vLLM", [
            dropdown("vllm_version", [(version, version) for version in VLLM_VERSIONS]),
            dropdown("backend", catalogue.backend_options(version, state.backends)),
            machine_control(),
            dropdown("connector", catalogue.connector_options(version)),
            dropdown("requested", catalogue.requested_options()),
            checkbox("disable_hybrid_kv_cache_manager"),
        ]),
        ("Layout", [
            dropdown("layout", catalogue.layout_options(None, {})),
            optional_integer("block_size", (16, 32, 64, 128, 256)),
            optional_integer("kernel_block_size", (16, 32, 64, 128)),
        ]),
        ("Pool", [
            amount(DEFAULT_NUM_BLOCKS),
            dropdown("device", [(device, device) for device in devices()]),
        ]),
    ]
