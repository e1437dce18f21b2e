"""A captured config that names no layout is answered under a guess, and every answer says so."""

import json
from dataclasses import replace

import pytest

import kvlayout as kv
from kvlayout import capture
from kvlayout.capture import parse
from kvlayout.captured import captured_selection
from kvlayout.clinic import check_log, lint
from kvlayout_widgets import Explorer
from tests.unit.test_cli import QWEN, ROOT, json_of, refused, run


def unnamed(heads=8):
    spec = kv.FullAttentionSpec(block_size=16, num_kv_heads=heads, head_size=128, dtype="bfloat16")
    groups = [kv.KVCacheGroupSpec(["a", "b"], spec)]
    config = kv.get_kv_cache_config_from_groups(groups, 0, kv.KVCacheLayout.LBNHC, num_gpu_blocks_override=100)
    return replace(config, kv_cache_layout=None)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "f.log"
    path.write_text(f"INFO 03-07 08:18:10 [a.py:1] {unnamed()!r}\n")
    return path


def test_decode_says_both(log):
    text = " ".join(run("decode", log, "--address", 70_000).stdout.split())
    assert "can't tell them apart" in text and "In LBHNC: Group 0: a, block 1, head 0, state 8" in text
    facts = json_of("decode", log, "--address", 70_000)
    (owner,), (other,) = facts["owners"], facts["in_other_layouts"]["LBHNC"]["owners"]
    assert (facts["layout"], owner["head"], owner["state"]) == ("LBNHC", 0, 1)
    assert (other["head"], other["state"]) == (0, 8)
    assert json_of("decode", log, "--address", 70_000, "--layout", "LBHNC")["guess"] == []
    slot = json_of("decode", log, "--slot", 17)
    assert slot["groups"][0]["offsets"]["a"][0] == 65_536 + 4_096
    assert slot["in_other_layouts"]["LBHNC"][0]["offsets"]["a"][0] == 65_536 + 512
    assert "In LBHNC:" in run("decode", log, "--slot", 17).stdout


def test_the_others_say_it(log, tmp_path):
    assert "layout-unknown" in {one["rule"] for one in json_of("lint", log)["findings"]}
    assert json_of("formula", log, "layer_offset", status=1)["guess"]
    line = tmp_path / "line.log"
    line.write_text("Using NHD KV cache layout for FLASH_ATTN backend.\n")
    assert json_of("log", log, line)["facts"][0]["verdict"] == "can't tell"


def test_names_gives_every_layout_that_it_may_be(log):
    found = json_of("names", log)
    assert list(found) == ["LBNHC", "LBHNC"]
    for name, words in found.items():
        assert json_of("names", log, "--layout", name) == {name: words}
    text = run("names", log).stdout
    assert "can't tell them apart" in " ".join(text.split())
    assert all(words["fingerprint"] in text for words in found.values())


def test_a_plan_is_linted_as_its_config_and_checked_with_it():
    plan = kv.make_plan(captured_selection(unnamed()))
    assert plan.resolution.others == ("LBHNC",)
    assert [one.rule for one in lint(plan)].count("layout-unknown") == 1
    assert lint(plan.config) == lint(plan)
    line = "Using HND KV cache layout for FLASHINFER backend."
    assert [one.verdict for one in check_log(line, plan)] == ["can't tell"]
    alike = kv.make_plan(captured_selection(unnamed(heads=1)))
    assert not alike.resolution.is_guess and "same place" in alike.resolution.why
    assert parse(repr(unnamed())) == unnamed()


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("layout", [*kv.KVCacheLayout, None], ids=lambda one: getattr(one, "name", "guessed"))
def test_a_guess_stays_one_in_the_plans_config(layout, heads, tmp_path):
    """Whatever is done with a plan's config: linted, saved and opened again, planned again."""
    config = unnamed(heads)
    try:
        plan = kv.make_plan(captured_selection(config, layout=layout and layout.name))
    except kv.LayoutError:
        assert layout is not None  # its strides can't hold that one
        return
    assert plan.config.kv_cache_layout == (None if plan.resolution.is_guess else plan.layout.name)
    assert plan.resolution.is_guess == (layout is None and heads == 8)
    told = [one.rule for one in lint(plan.config)].count("layout-unknown")
    assert told == [one.rule for one in lint(plan)].count("layout-unknown") == plan.resolution.is_guess
    capture.save(plan.config, tmp_path / "again.json")
    again = kv.make_plan(captured_selection(tmp_path / "again.json"))
    assert (again.resolution.is_guess, again.layout) == (plan.resolution.is_guess, plan.layout)


def test_the_clinic_tab_says_it():
    explorer = Explorer(unnamed())
    explorer.show("Clinic")
    assert "can&#x27;t tell them apart" in explorer.tabs["Clinic"]._asks.value
    explorer.choose(layout="LBNHC")
    assert "can&#x27;t tell" not in explorer.tabs["Clinic"]._asks.value


def test_fingerprints():
    print_ = json_of("explain", QWEN)["fingerprint"]
    assert print_.startswith("kvmap1-") and print_ in run("explain", QWEN).stdout
    equal, other = json_of("diff", "NHD", "LBNHC"), json_of("diff", "LBNHC", "LBHNC", status=1)
    assert equal["fingerprints"] == [print_, print_] and len(set(other["fingerprints"])) == 2


def test_a_folder_and_a_smaller_rank(tmp_path):
    assert "is a folder without a config.json" in refused("lint", tmp_path)
    names = json_of("formula", QWEN, "--tp", 2)["names"]
    assert names["page_bytes"]["first_layer"] == 32_768
    assert json.loads(run("lint", QWEN, "--json").stdout)["findings"] is not None


def test_lint_of_several_ranks(tmp_path):
    paths = []
    for rank, blocks in enumerate((8, 8, 9)):
        paths.append(tmp_path / f"rank-{rank}.json")
        capture.save(kv.make_plan(kv.Selection(model=QWEN, num_blocks=blocks)).config, paths[-1])
    facts = json_of("lint", *paths, status=1)
    assert list(facts["ranks"]) == [str(path) for path in paths]
    assert facts["between_ranks"][0]["rule"] == "rank-num-blocks"
    assert "rank 2 has 9" in " ".join(run("lint", *paths).stdout.split())
    assert "rank-num-blocks" not in {one["rule"] for one in json_of("lint", *paths[:2])["between_ranks"]}
    assert "only once" in refused("lint", "-", "-", stdin="x")


def test_a_kernel_block_names_its_manager_block():
    split = ROOT / "notebooks" / "data" / "cases" / "vllm-28677.json"
    text = " ".join(run("decode", split, "--address", 655_360).stdout.split())
    assert "kernel block 5 (manager block 2, part 2 of 2)" in text
    explorer = Explorer(split)
    explorer.show("Clinic")
    tab = explorer.tabs["Clinic"]
    tab.show("Address")
    tab.visible.address.value = "655360"
    assert "<td>kernel block 5 (manager block 2, part 2 of 2)</td>" in tab.visible.text.value


def test_a_pointer_without_its_base():
    done = run("decode", QWEN, "--address", "0x7f0000010000")
    assert done.exit_code == 1 and "looks like a pointer; give the base" in " ".join(done.stdout.split())
    assert run("decode", QWEN, "--address", "0x7f0000010000", "--base", "0x7f0000000000").exit_code == 0


def test_a_log_opens_in_the_explorer(tmp_path):
    path = ROOT / "notebooks" / "data" / "cases" / "vllm-54465.log"
    assert Explorer(str(path)).plan.config.kv_cache_layout == "BLHNC"
    (tmp_path / "no.log").write_text("hello")
    with pytest.raises(kv.LayoutError):
        captured_selection(tmp_path / "no.log")


def test_decode_a_position_and_other_block_sizes():
    """vllm#51031 and vllm#47056."""
    cases = ROOT / "notebooks" / "data" / "cases"
    (group,) = json_of("decode", cases / "vllm-51031.json", "--position", 300, "--block-id", 5, "--ranks", 4,
                       "--interleave", 128)["groups"]
    assert (group["rank"], group["slot"]) == (2, 684)
    text = " ".join(run("decode", cases / "vllm-47056.json", "--slot", "75,849", "--block-size", 4).stdout.split())
    assert "18,962" in text and "OUT of the pool" in text
    for wrong in (("--position", 3), ("--position", 3, "--slot", 1), ("--address", 3, "--block-size", 4),
                  ("--slot", 3, "--block-size", 0), ("--position", 3, "--block-id", 1, "--ranks", 0)):
        refused("decode", QWEN, *wrong)


def test_what_lies_beyond_counts_kernel_blocks_too():
    split = ROOT / "notebooks" / "data" / "cases" / "vllm-28677.json"
    size = kv.make_plan(captured_selection(split)).config.size_bytes
    done = run("decode", split, "--address", size + 70_000_000)
    assert done.exit_code == 1
    assert "kernel block" in done.stdout and "manager block" in done.stdout


@pytest.mark.parametrize("title", ["Clinic", "Transfer"])
def test_a_tab_whose_answers_hang_on_the_layout_says_the_guess_over_each_of_its_panels(title):
    explorer = Explorer(unnamed())
    explorer.show(title)
    tab = explorer.tabs[title]
    for _ in range(2):  # also over a panel that was drawn before
        for panel in tab.panels:
            tab.show(panel)
            assert "can&#x27;t tell them apart" in tab._asks.value and "choose Layout" in tab._asks.value
    explorer.choose(layout="LBNHC")
    for panel in tab.panels:
        tab.show(panel)
        assert "can&#x27;t tell" not in tab._asks.value
