"""The controls: what text means, what is offered for a vLLM version, and where a refusal is shown."""

import json
from pathlib import Path

import pytest

from kvlayout import KVCacheLayout, LayoutError, Selection
from kvlayout_widgets import Explorer, catalogue
from kvlayout_widgets.control import chosen, parse_integer, parse_size
from kvlayout_widgets.controls import Controls
from kvlayout_widgets.state import State

TINY = {"model": "llama-tiny", "num_blocks": 8}


class Panel:
    """Controls over a state, and what they reported last."""

    def __init__(self, backends=(), **choices):
        self.state = State(Selection(**(TINY | choices)), backends)
        self.reported = None
        self.controls = Controls(self.state, self.changed)

    def changed(self, choices, problem):
        self.reported = choices, problem
        self.state.try_change(**choices)
        if problem is not None:
            self.state.refuse(problem)
        self.controls.show()

    def set(self, argument, value, part=0):
        self.controls.by_argument[argument].parts[part].value = value

    def refusals(self):
        return {control.arguments[0]: control.refusal for control in self.controls.all if control.refusal}

    def options(self, argument):
        return {value: text for text, value in self.controls.by_argument[argument].parts[0].options}


@pytest.mark.parametrize(("model", "backend", "machine", "said"), [
    ("llama-tiny", None, "CPU (as recorded)", "auto is FLASH_ATTN, as on a Hopper GPU; it runs on cuda, xpu,"),
    ("llama-tiny", "TRITON_ATTN", "CPU (as recorded)", "TRITON_ATTN runs on cuda, rocm, xpu, not on cpu"),
    ("llama-tiny", "CPU_ATTN", "CPU (as recorded)", None), ("llama-tiny", None, "NVIDIA Hopper", None),
    ("llama-tiny", None, "AMD Instinct MI300", "not on rocm, the machine below"),
    ("deepseek-ai/DeepSeek-V3", None, "CPU (as recorded)", "auto is FLASH_ATTN_MLA"),
    ("llama-tiny", "Mine", "CPU (as recorded)", None)])
def test_a_backend_of_another_platform_is_remarked(model, backend, machine, said):
    mine = type("Mine", (), {"supported_kv_cache_layouts": classmethod(lambda cls: None)})
    panel = Panel([mine], model=model, backend=backend, machine=catalogue.MACHINES[machine])
    note = panel.controls.by_argument["backend"].message.value
    assert said in note if said else note == ""
    panel.set("block_size", "many")  # what is shown isn't these choices' any more
    assert panel.controls.by_argument["backend"].message.value == ""


@pytest.mark.parametrize(("text", "number"), [
    ("64", 64), (" 1,024 ", 1024), ("1_000", 1000), ("auto", None), ("Auto", None), ("", None), ("0", 0), ("-3", -3)])
def test_whole_numbers(text, number):
    assert parse_integer(text, "block_size") == number


@pytest.mark.parametrize("text", ["many", "1.5", "0x10", "1e3", "9" * 30, "12 34 x"])
def test_what_is_no_whole_number_is_refused_by_name(text):
    with pytest.raises(LayoutError) as caught:
        parse_integer(text, "block_size")
    assert caught.value.argument == "block_size"
    assert text in str(caught.value)


@pytest.mark.parametrize(("text", "size"), [
    ("2", 2 << 30), ("1.5 GiB", 3 << 29), ("500 MiB", 500 << 20), ("68,681,728 B", 68_681_728), ("64KiB", 65_536),
    ("9007199254740993 b", 9_007_199_254_740_993)])
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "2 GB", "-1 GiB", "1.2.3", "."])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(LayoutError, match="is not a size"):
        parse_size(text)


def test_every_choice_of_a_selection_has_a_control_and_a_tooltip():
    panel = Panel()
    assert set(panel.controls.by_argument) == set(Selection().to_dict())
    for control in panel.controls.all:
        assert all(part.tooltip for part in control.parts if part is not panel.controls.by_argument["model"].parts[1])
        assert "title=" in control.label.value


def test_a_change_reports_what_all_controls_say():
    panel = Panel()
    panel.set("layout", "BLNHC")
    choices, problem = panel.reported
    assert problem is None
    assert choices == {**Selection().to_dict(), **TINY, "layout": "BLNHC"}
    assert panel.state.plan.layout is KVCacheLayout.BLNHC


def test_showing_a_state_reports_nothing():
    panel = Panel()
    panel.state.try_change(layout="BLHNC", block_size=32, num_blocks=None, available_memory=1 << 20)
    panel.controls.show()
    assert panel.reported is None
    assert chosen(panel.controls.by_argument["layout"].parts[0]) == "BLHNC"
    assert panel.controls.by_argument["block_size"].parts[0].value == "32"
    assert [part.value for part in panel.controls.by_argument["num_blocks"].parts] == ["0.000977", "GiB"] or \
        panel.controls.by_argument["num_blocks"].parts[0].value == "1,048,576 B"


@pytest.mark.parametrize(("argument", "value", "fact"), [
    ("tp_size", 3, "doesn't divide"), ("block_size", "7", "7"),
    ("block_size", "seven", "is not a whole number"),
    ("kernel_block_size", "5", "5"), ("num_blocks", "-1", "at least 0"),
    ("pp_size", 999, "999"), ("pp_rank", 1, "below"),
    ("kv_cache_dtype", "fp8_ds_mla", "MLA"), ("backend", "FLASH_ATTN_MLA", "plain attention")])
def test_a_wrong_choice_is_explained_beside_its_control_and_the_plan_stays(argument, value, fact):
    panel = Panel()
    before = panel.state.plan
    panel.set(argument, value)
    assert list(panel.refusals()) == [argument]
    assert fact in panel.refusals()[argument]
    control = panel.controls.by_argument[argument]
    assert "kvl-wrong" in control.row._dom_classes
    assert "✗" in control.message.value
    assert panel.state.plan is before
    right = {"tp_size": 1, "pp_size": 1, "pp_rank": 0, "num_blocks": "8", "backend": ""}
    panel.set(argument, right.get(argument, "auto"))
    assert panel.refusals() == {}
    assert "kvl-wrong" not in control.row._dom_classes
    assert "✗" not in control.message.value


def test_text_that_means_nothing_stays_to_be_mended_while_others_change():
    panel = Panel()
    panel.set("block_size", "seven")
    panel.set("layout", "BLNHC")
    assert panel.controls.by_argument["block_size"].parts[0].value == "seven"
    assert list(panel.refusals()) == ["block_size"]
    assert panel.state.plan.layout is KVCacheLayout.BLNHC
    panel.set("block_size", "32")
    assert panel.refusals() == {}
    assert panel.state.plan.selection.block_size == 32


class OnlyBlockOuter:
    """A backend whose kernels want all of a block together."""

    @classmethod
    def supported_kv_cache_layouts(cls):
        return (KVCacheLayout.BLNHC, KVCacheLayout.BLHNC)


def test_layouts_that_the_users_backend_rejects_are_marked_and_can_be_forced():
    panel = Panel(backends=(OnlyBlockOuter,), backend="OnlyBlockOuter")
    options = panel.options("layout")
    assert options[""] == "auto → BLNHC"
    assert options["LBNHC"] == "LBNHC  ✗ is not supported by OnlyBlockOuter"
    assert options["BLHNC"] == "BLHNC"
    panel.set("layout", "LBNHC")
    assert panel.state.plan.layout is KVCacheLayout.LBNHC
    note = panel.controls.by_argument["layout"].message.value
    assert "vLLM&#x27;s resolver would refuse it: LBNHC is not supported by OnlyBlockOuter" in note
    assert panel.refusals() == {}
    panel.set("layout", "BLHNC")
    assert "would refuse" not in panel.controls.by_argument["layout"].message.value


def test_backends_are_those_of_the_version_with_the_users_first():
    panel = Panel(backends=(OnlyBlockOuter,))
    names = list(panel.options("backend"))
    assert names[:2] == ["", "OnlyBlockOuter"]
    assert "FLASH_ATTN" in names
    assert not any(name.startswith("MAMBA") for name in names)
    known = {version: {name for _, name in catalogue.backend_options(version)} for version in ("0.29.0", "0.33.0")}
    only_new = sorted(known["0.33.0"] - known["0.29.0"])
    assert only_new
    panel.set("vllm_version", "0.29.0")
    assert not set(only_new) & set(panel.options("backend"))


def test_a_choice_that_another_version_lacks_is_kept_and_refused():
    panel = Panel()
    panel.set("connector", "HiSparseConnector")
    assert panel.refusals() == {}
    panel.set("vllm_version", "0.29.0")
    assert list(panel.refusals()) == ["connector"]
    assert panel.options("connector")["HiSparseConnector"] == "HiSparseConnector (unknown here)"


def test_any_order_of_the_axes_is_named_while_it_is_forced():
    panel = Panel(layout="HBLCN")
    assert panel.options("layout")["HBLCN"] == "HBLCN (not vLLM's)" and len(panel.options("layout")) == 8
    panel.set("layout", "BHLNC")
    assert panel.refusals() == {} and "HBLCN" not in panel.options("layout") and len(panel.options("layout")) == 7


def test_kv_dtypes_are_those_of_the_backend():
    panel = Panel()
    every = set(panel.options("kv_cache_dtype"))
    panel.set("backend", "FLASH_ATTN")
    own = set(panel.options("kv_cache_dtype"))
    assert "auto" in own
    assert own < every
    assert next(iter(panel.options("kv_cache_dtype"))) == "auto"


def test_a_model_from_its_config():
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "hidden_size": 64, "torch_dtype": "bfloat16", "max_position_embeddings": 128}
    panel = Panel()
    before = panel.state.plan
    panel.set("model", catalogue.FROM_CONFIG)
    # Nothing was given yet, so nothing is wrong, and the place for it is open.
    control = panel.controls.by_argument["model"]
    assert panel.refusals() == {} and control.parts[0].value == catalogue.FROM_CONFIG
    assert control.row.children[1].layout.display is None
    assert panel.state.plan is before
    panel.set("model", "{not json", part=1)
    assert "is not JSON" in panel.refusals()["model"]
    panel.set("model", json.dumps(config), part=1)
    assert panel.refusals() == {}
    assert panel.state.plan.selection.model == config
    assert len(panel.state.plan.address_map.layers) == 2
    panel.set("model", "{}", part=1)
    assert list(panel.refusals()) == ["model"]


def test_another_model_closes_the_place_for_a_text():
    shown = Explorer(model="llama-tiny", num_blocks=8)
    control = shown.controls.by_argument["model"]
    control.parts[0].value = catalogue.FROM_CONFIG
    assert control.row.children[1].layout.display is None
    assert shown.choose(model="Qwen/Qwen3-0.6B") and control.parts[0].value == "Qwen/Qwen3-0.6B"
    assert control.row.children[1].layout.display == "none"


def test_a_captured_pool_has_the_blocks_that_it_has():
    shown = Explorer(Path(__file__).parents[2] / "notebooks" / "data" / "cases" / "vllm-50276.json")
    size = shown.controls.by_argument["num_blocks"].parts[0]
    assert size.disabled and size.placeholder == "100"
    shown.choose(model="llama-tiny")
    assert not size.disabled and size.placeholder == "64"


def test_the_pool_by_memory():
    panel = Panel()
    panel.set("num_blocks", "GiB", part=1)
    panel.set("num_blocks", "2 MiB")
    assert panel.state.plan.selection.available_memory == 2 << 20
    assert panel.state.plan.selection.num_blocks is None
    assert panel.state.plan.config.size_bytes <= 2 << 20
    panel.set("num_blocks", "much")
    assert "is not a size" in panel.refusals()["num_blocks"]


def test_a_choice_that_does_not_exist_is_refused_and_forgotten():
    shown = Explorer(model="llama-tiny", num_blocks=8)
    assert not shown.choose(foo=3) and "foo" in str(shown.state.problem)
    assert shown.choose(num_blocks=9) and shown.plan.config.num_blocks == 9


@pytest.mark.parametrize("capture", [{}, {"num_blocks": -1, "kv_cache_tensors": [], "kv_cache_groups": []}])
def test_a_capture_that_is_wrong_is_explained_beside_the_model(capture):
    shown = Explorer(model="llama-tiny", num_blocks=8)
    assert not shown.choose(model={"kvlayout": 1, "kv_cache_config": capture})
    assert shown.controls.control_of(shown.state.problem.argument) is shown.controls.by_argument["model"]
