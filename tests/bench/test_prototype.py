"""A backend that is only designed: its verdict alone and with others, who loses, its page, and what it lacks."""

from dataclasses import replace

import pytest

import kvlayout as kv
from kvlayout.bench import PrototypeBackend, backend_matrix, try_backend
from kvlayout.errors import LayoutError
from kvlayout.interior import Field, Interior
from kvlayout.spec import MultipleOf

QWEN = kv.Selection(num_blocks=8)
SPEC = kv.FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")


MAMBA = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
         "num_hidden_layers": 2, "state_size": 16, "conv_kernel": 4, "torch_dtype": "bfloat16"}


class Mine(PrototypeBackend):
    layouts = ("BLHNC", "LBHNC")
    kernel_block_sizes = (16, 32)


class Scaled:
    """A duck type: fp32 scales behind K and V, pages of whole 4 KiB."""

    @classmethod
    def supported_kv_cache_layouts(cls):
        return ["LBHNC"]

    @classmethod
    def customize_spec(cls, spec):
        content = spec.state_content_size_bytes + 8
        packed = replace(spec, state_content_bytes=content)
        return replace(packed, page_size_padded=-(-packed.page_size_bytes // 4096) * 4096)

    @classmethod
    def interior(cls, spec):
        return Interior((Field("K", 0, 128, 16), Field("V", 256, 128, 16), Field("scales", 512, 2, 32)))


def rules(trial):
    return [one.rule for one in trial.findings if one.is_error]


def test_alone_it_gets_its_first_choice():
    trial = try_backend(Mine, QWEN)
    assert trial.ok and trial.backend.name == "Mine"
    assert trial.alone.layout == "BLHNC" and trial.alone.candidates == ("BLHNC", "LBHNC")
    (mine,) = trial.alone.standings
    assert (mine.choice, mine.loses, mine.lost) == (1, False, {})
    assert trial.together.layout == "BLHNC" and trial.plan.layout.name == "BLHNC"


def test_together_the_intersection_decides_and_losers_are_named():
    trial = try_backend(Mine, QWEN, beside=["CPU_ATTN", "FLASH_ATTN"])
    assert [one.backend for one in trial.together.standings] == ["Mine", "CPU_ATTN", "FLASH_ATTN"]
    # CPU_ATTN of 0.33.0 takes LBHNC alone, FLASH_ATTN any.
    assert (trial.alone.layout, trial.together.layout, trial.together.candidates) == ("BLHNC", "LBHNC", ("LBHNC",))
    mine, cpu, flash = trial.together.standings
    assert (mine.choice, cpu.choice, flash.choice) == (2, 1, 0)
    assert mine.lost == {"BLHNC": "is not supported by CPU_ATTN"}
    assert flash.declared is None and trial.together.losers == ["Mine"]
    assert trial.plan.layout.name == "LBHNC" and trial.ok


def test_nothing_in_common():
    trial = try_backend(type("Flat", (PrototypeBackend,), {"layouts": ("BLNHC",)}), QWEN, beside=["CPU_ATTN"])
    assert rules(trial) == ["no-layout-together"] and not trial.ok
    assert "support no layout in common" in trial.findings[0].message and "CPU_ATTN" in trial.findings[0].message
    assert trial.together.layout is None and trial.together.candidates == ()
    assert trial.together.losers == ["Flat", "CPU_ATTN"]
    assert trial.alone.layout == "BLNHC" == trial.plan.layout.name  # the page is shown as it would be alone


@pytest.mark.parametrize(("sizes", "beside", "layout", "rule", "told"), [
    ((32,), (48,), "LBNHC", "no-kernel-block-together", "no divisor that every backend takes"),
    ((32,), (32, 16), "LBNHC", None, ""),
    ((MultipleOf(16),), (16,), "LBNHC", "kernel-block-together", "kernel blocks of 16 tokens, not of 64"),
    ((64,), (16,), "BLNHC", "no-kernel-block-together", "blocks of 64 tokens are handed to Beside too"),
    ((64,), (MultipleOf(16),), "BLNHC", None, "")], ids=["none", "same", "smaller", "whole", "whole taken"])
def test_kernel_blocks_together(sizes, beside, layout, rule, told):
    mine = type("Mine", (PrototypeBackend,), {"layouts": (layout,), "kernel_block_sizes": sizes})
    other = type("Beside", (PrototypeBackend,), {"layouts": (layout,), "kernel_block_sizes": beside})
    trial = try_backend(mine, replace(QWEN, block_size=64), beside=[other])
    found = [one for one in trial.findings if one.rule.endswith("kernel-block-together")]
    assert trial.ok and [one.rule for one in found] == ([] if rule is None else [rule])
    assert all(told in one.message and "Where layers of Beside share a group" in one.message for one in found)
    assert try_backend(mine, replace(QWEN, block_size=64)).findings == tuple(
        one for one in trial.findings if one not in found)


def test_the_models_other_layers_have_a_say():
    trial = try_backend(Mine, kv.Selection(model="gemma3-hybrid-tiny", num_blocks=8))
    assert trial.ok and {page.layers for page in trial.pages} == {
        region.tensor.layers for region in trial.plan.address_map.regions}
    hybrid = try_backend(type("Tall", (PrototypeBackend,), {"layouts": ("LHBNC", "BLNHC")}),
                         kv.Selection(model="Qwen/Qwen3-Next-80B-A3B-Instruct", num_blocks=8))
    assert hybrid.alone.layout == "LHBNC" and hybrid.together.layout == "BLNHC"
    tall = hybrid.together.standings[0]
    assert (tall.backend, tall.choice, tall.lost) == ("Tall", 2, {"LHBNC": "is not block-compact"})
    assert [one.backend for one in hybrid.together.standings][1:] == ["GDN_ATTN"]


def test_the_request_and_the_connector_count():
    trial = try_backend(Mine, replace(QWEN, connector="NixlConnector"))
    assert trial.alone.layout == "LBHNC" and trial.alone.standings[0].choice == 2
    refused = try_backend(Mine, replace(QWEN, requested="LBNHC"))
    assert rules(refused) == ["no-layout-alone"] and refused.alone.candidates == ("BLHNC", "LBHNC")
    assert refused.plan.layout.name == "BLHNC"


def test_the_page_as_it_would_be_packed():
    trial = try_backend(Scaled, QWEN)
    assert trial.ok
    (page,) = trial.pages
    assert page.reported == replace(SPEC, block_size=16) and len(page.layers) == 28
    # 8 heads x 16 states x 520 bytes are 66,560.
    assert page.packed.state_content_bytes == 520 and page.shape == (8, 8, 16, 520)
    assert (page.page_size_bytes, page.padding_bytes) == (69_632, 3072)
    assert page.strides == (69_632, 16 * 520, 520, 1)
    assert page.view.shape == (8, 8, 16, 260) and page.view.stride_elements == (34_816, 4160, 260, 1)
    assert [field.name for field in page.interior.fields] == ["K", "V", "scales"]


def test_alignments_and_kernel_blocks_of_the_base_class():
    class Wide(PrototypeBackend):
        layouts = ("LBNHC",)
        kernel_block_sizes = (16,)
        page_alignment = 100_000
        block_stride_alignment = 3

    (page,) = try_backend(Wide, QWEN).pages
    assert (page.packed.page_size_padded, page.packed.block_stride_alignment) == (100_000, 3)
    assert (page.page_size_bytes, page.padding_bytes, page.strides[0]) == (100_000, 34_464, 100_002)
    split = type("Split", (PrototypeBackend,), {"layouts": ("LBNHC",), "kernel_block_sizes": (16,)})
    (page,) = try_backend(split, replace(QWEN, block_size=64)).pages
    assert (page.kernel_block_size, page.shape) == (16, (32, 8, 16, 512))
    assert Wide.get_name() == "Wide"


def test_a_layout_that_vllm_does_not_have():
    new = type("New", (PrototypeBackend,), {"layouts": ("HBLCN", "BLHNC")})
    trial = try_backend(new, QWEN)
    assert trial.ok and trial.plan.layout.name == "BLHNC"
    mine = trial.alone.standings[0]
    assert (mine.declared, mine.choice) == (("HBLCN", "BLHNC"), 2)
    assert mine.lost == {"HBLCN": "is no layout of vLLM's"}
    assert [one.rule for one in trial.findings if one.severity == "warning"] == ["prototype-layout"]
    forced = try_backend(new, replace(QWEN, layout="HBLCN"))
    (page,) = forced.pages
    assert forced.plan.layout == kv.PhysicalLayout("HBLCN") and page.view.dtype == "int8"
    only = try_backend(type("Only", (PrototypeBackend,), {"layouts": ("HBLNC",)}), QWEN)
    assert "none that this backend takes" in next(one.message for one in only.findings
                                                  if one.rule == "prototype-layout")
    assert rules(only) == ["no-layout-alone"]
    assert only.plan.layout.name == "HBLNC" and only.pages[0].strides[1] > only.pages[0].strides[0]


def test_every_model_and_an_object_instead_of_a_class():
    for name, model in kv.presets().items():
        if not set(model.layer_kinds.values()) <= model.STATE_KINDS:
            trial = try_backend(Mine(), kv.Selection(model=name, num_blocks=4))
            plan = kv.make_plan(kv.Selection(model=name, num_blocks=4, backend="Mine"), backends=[Mine()])
            assert trial.alone.layout == "BLHNC", name
            sizes = {page.kernel_block_size for page in trial.pages}  # of hybrids more than it takes
            assert rules(trial) == ["kernel-block"] * len(sizes - {16, 32}), name
            assert (trial.plan.config, trial.plan.layout) == (plan.config, plan.layout), name
            mine = {layer for layer, backend in plan.backends.items() if backend.name == "Mine"}
            assert {layer for page in trial.pages for layer in page.layers} == mine, name


@pytest.mark.parametrize(("act", "argument"), [
    (lambda: try_backend(Mine, "Qwen"), "selection"), (lambda: try_backend(Mine, QWEN, beside=["NONE"]), "backend"),
    (lambda: try_backend(Mine, kv.Selection(model="nothing")), "model"),
    (lambda: try_backend(Mine, kv.Selection(model=MAMBA)), "selection"),
    (lambda: try_backend(Mine, kv.Selection(model={"kv_cache_config": {}})), "selection"),
])
def test_bad_input(act, argument):
    with pytest.raises(LayoutError) as caught:
        act()
    assert caught.value.argument == argument


def test_multiple_of_is_taken():
    assert try_backend(type("Any", (PrototypeBackend,), {"kernel_block_sizes": [MultipleOf(8)]}), QWEN).ok


class Named(PrototypeBackend):
    layouts = ("BLHNC", "LBNHC")


def named(name, *layouts):
    return type(name, (PrototypeBackend,), {"layouts": layouts})


@pytest.mark.parametrize("mine, beside, model", [
    (named("CPU_ATTN", "BLHNC"), ["CPU_ATTN"], "Qwen/Qwen3-0.6B"),
    (Named, [named("B", "LBNHC"), named("B", "BLHNC")], "Qwen/Qwen3-0.6B"),
    (Named, [named("Named", "LBNHC")], "Qwen/Qwen3-0.6B"),
    (named("GDN_ATTN", "LBNHC"), [], "Qwen/Qwen3-Next-80B-A3B-Instruct")], ids=["catalogue", "two", "mine", "model"])
def test_two_backends_of_one_name_are_refused_not_merged(mine, beside, model):
    with pytest.raises(LayoutError, match="two different backends") as refused:
        try_backend(mine, kv.Selection(model=model, num_blocks=8), beside=beside)
    assert "Rename" in refused.value.cure


def test_the_same_backend_twice_is_one():
    trial = try_backend(Named, kv.Selection(num_blocks=8), beside=[Named, "FLASH_ATTN", "FLASH_ATTN"])
    assert [one.backend for one in trial.together.standings] == ["Named", "FLASH_ATTN"]
    with pytest.raises(LayoutError, match=r"beside=\[MyBackend\]"):
        try_backend(Named, beside="FLASH_ATTN")


def test_what_a_shell_prints_of_it_is_short():
    selection = kv.Selection(model="meta-llama/Llama-3.3-70B-Instruct", num_blocks=8)
    trial = try_backend(Mine, selection, beside=["CPU_ATTN"])
    assert max(len(repr(one)) for one in (trial, trial.plan, trial.together, backend_matrix("0.33.0"))) < 3000
    assert "plan=" not in repr(trial) and "layout='LBHNC'" in repr(trial.together)
    few = backend_matrix("0.33.0", platform="cpu", mla=True)
    assert repr(few).startswith("<BackendMatrix of vLLM 0.33.0: ") and all(row.backend in repr(few) for row in few)
    assert repr(few).endswith(f"; {len(few.excluded)} excluded>")
