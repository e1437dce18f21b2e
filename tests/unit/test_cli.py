"""The command line: exact values, exit status, JSON, stdin, and input that is none."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kvlayout as kv
from kvlayout import capture
from kvlayout.cli.app import app

ROOT = Path(__file__).parents[2]
QWEN = "Qwen/Qwen3-0.6B"
MODELS = ["gemma3-hybrid-tiny", "Qwen/Qwen3-Next-80B-A3B-Instruct", "deepseek-ai/DeepSeek-V3.2-Exp",
          "openai/whisper-large-v3", QWEN]


def run(*args, stdin=None):
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)


def json_of(*args, status=0, stdin=None):
    done = run(*args, "--json", stdin=stdin)
    assert done.exit_code == status, (done.output, done.exception)
    return json.loads(done.stdout)


def refused(*args, stdin=None):
    done = run(*args, stdin=stdin)
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    assert done.stdout == "" and len(done.stderr.strip().splitlines()) == 1 and done.stderr.startswith("kvlayout: ")
    return done.stderr


@pytest.fixture
def captured(tmp_path):
    """A captured config in two layouts, each as JSON, and one as pasted text."""
    paths = {}
    for layout in ("BLNHC", "BLHNC"):
        config = kv.make_plan(kv.Selection(model=QWEN, layout=layout, num_blocks=8)).config
        capture.save(config, tmp_path / f"{layout}.json")
        paths[layout] = tmp_path / f"{layout}.json"
    paths["text"] = tmp_path / "pasted.log"
    paths["text"].write_text(f"(EngineCore pid=1) INFO 03-07 08:18:10 [a.py:1] {config!r}\n")
    return paths


def test_explain_says_layout_groups_and_strides():
    facts = json_of("explain", QWEN, "--backend", "FLASH_ATTN", "--layout", "BLNHC", "--blocks", 100)
    assert (facts["layout"], facts["num_blocks"]) == ("BLNHC", 100)
    assert (facts["bytes_per_block"], facts["size_bytes"]) == (1_835_008, 183_500_800)
    assert facts["groups"][0]["page_sizes_bytes"] == [65_536] and facts["groups"][0]["num_layers"] == 28
    assert facts["tensors"][0]["shape"] == [28, 100, 8, 16, 512]
    assert facts["tensors"][0]["strides"] == [65_536, 1_835_008, 512, 4096, 1]
    text = run("explain", QWEN, "--layout", "BLNHC").stdout
    assert "1,835,008" in text and "layout BLNHC" in text


def test_explain_of_choices():
    facts = json_of("explain", QWEN, "--tp", 8, "--block-size", 32, "--kv-dtype", "fp8")
    assert facts["tensors"][0]["shape"] == [28, 64, 1, 32, 256]


@pytest.mark.parametrize("model", MODELS)
def test_tables_fit_80_columns(model):
    for args in (("explain", model), ("transfer", model), ("decode", model, "--slot", 100), ("formula", model),
                 ("formula", model, "--classic", "kv-split-planes")):
        done = run(*args)
        assert done.exit_code in (0, 1), (args, done.output)
        assert max(map(len, done.stdout.splitlines())) <= 80


def test_explain_a_config_json_and_stdin(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(kv.get_preset(QWEN).config))
    expected = json_of("explain", QWEN)["tensors"]
    assert json_of("explain", path)["tensors"] == expected
    assert json_of("explain", tmp_path)["tensors"] == expected
    assert json_of("explain", "-", stdin=path.read_text())["tensors"] == expected


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_explain_draws(tmp_path, suffix):
    out = tmp_path / f"offsets.{suffix}"
    assert run("explain", "llama-tiny", "--out", out).exit_code == 0
    assert out.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
    assert "must end in .png or .svg" in refused("explain", "llama-tiny", "--out", tmp_path / "x.pdf")
    assert "can't be written" in refused("explain", "llama-tiny", "--out", tmp_path / "none" / f"x.{suffix}")


def test_decode_an_address(captured):
    # Block 3 of layer 2 in BLNHC: 3 × 1,835,008 + 2 × 65,536, then state 5 (4,096 each), head 1 (512), byte 300.
    offset = 3 * 1_835_008 + 2 * 65_536 + 5 * 4096 + 512 + 300
    (owner,) = json_of("decode", captured["BLNHC"], "--address", hex(0x7F00_0000_0000 + offset),
                       "--base", "0x7f0000000000")["owners"]
    assert owner == {"layer": "model.layers.2.self_attn.attn", "block": 3, "head": 1, "state": 5, "byte": 300,
                     "field": "V", "element": 22, "tensor": 0, "group": 0}
    text = run("decode", captured["BLNHC"], "--address", f"{offset:,}").stdout
    assert "block 3, head 1, state 5, byte 300 of the state: V, element 22" in " ".join(text.split())


def test_decode_from_pasted_text_on_stdin(captured):
    owners = json_of("decode", "-", "--address", "65536", stdin=captured["text"].read_text())["owners"]
    assert [(owner["layer"], owner["block"]) for owner in owners] == [("model.layers.1.self_attn.attn", 0)]


@pytest.mark.parametrize(("address", "words"), [("14680064", "0 bytes past the end"),
                                                ("-1", "1 byte before the base")])
def test_an_address_outside_is_a_finding(captured, address, words):
    done = run("decode", captured["BLNHC"], "--address", address)
    assert done.exit_code == 1 and words in " ".join(done.stdout.split())
    assert json_of("decode", captured["BLNHC"], "--address", address, status=1)["where"] != "inside"


def test_decode_padding():
    facts = json_of("decode", "Qwen/Qwen3-Next-80B-A3B-Instruct", "--address", 1_097_728)
    assert {one["group"] for one in facts["padding_of"]} == {0, 1, 2}  # the state's page, up to the attention's
    assert [owner["group"] for owner in facts["owners"]] == [3]


def test_decode_names_the_product_that_wrapped(tmp_path):
    """xpu-kernels#445: block 2,066 of 1,039,680 bytes in int32 points below the base."""
    spec = kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=1_039_680 // 64, dtype="uint8")
    config = kv.get_kv_cache_config_from_groups(kv.get_kv_cache_groups({"a": spec}, "LBNHC"), 0, "LBNHC",
                                                num_gpu_blocks_override=4096)
    capture.save(config, tmp_path / "one.json")
    facts = json_of("decode", tmp_path / "one.json", "--address", "-2146988416", status=1)
    assert any("Block 2,066 of a" in sentence for sentence in facts["sentences"])


def test_decode_a_slot():
    (group,) = json_of("decode", QWEN, "--slot", 75)["groups"]
    assert (group["block"], group["row"], group["in_pool"]) == (4, 11, True)
    first = 64 * 65_536 + 4 * 65_536 + 11 * 4096
    assert group["offsets"]["model.layers.1.self_attn.attn"] == [first + 512 * head for head in range(8)]
    (ignored,) = json_of("decode", QWEN, "--slot", "-1")["groups"]
    assert ignored["block"] is None and ignored["offsets"] == {} and "ignores" in ignored["notes"][0]
    past = json_of("decode", QWEN, "--slot", 64 * 16, status=1)["groups"][0]
    assert past["in_pool"] is False and past["offsets"] == {}
    assert "null block" in run("decode", QWEN, "--slot", 3).stdout


def test_lint(tmp_path, captured):
    found = json_of("lint", QWEN, "--layout", "BLNHC", "--blocks", 2342)["findings"]
    passed = [one["numbers"] for one in found if one["rule"] == "int32-offset"]
    assert {numbers["first_block"] for numbers in passed} == {1171, 2341}
    assert "BLOCK-SPAN" in run("lint", captured["text"]).stdout.upper()
    broken = json.loads(captured["BLNHC"].read_text())
    broken["kv_cache_config"]["kv_cache_tensors"][0]["size"] //= 2
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    assert {one["severity"] for one in json_of("lint", tmp_path / "broken.json", status=1)["findings"]} >= {"error"}


def test_formula(tmp_path):
    """vllm#42740 and #50276."""
    wrong = "layer_offset + block * block_stride + (head * num_states + token) * content_bytes + element * 2"
    facts = json_of("formula", QWEN, wrong, "--layout", "LBNHC", "--layer", 0, "--block", 3, status=1)
    first = "model.layers.0.self_attn.attn"
    assert facts["first"] == {"layer": first, "block": 3, "head": 0, "token": 1, "element": 0}
    assert (facts["expected"], facts["found"]) == (3 * 65_536 + 4_096, 3 * 65_536 + 512)
    assert facts["share"] == 126 / 128 and facts["sampled"] is False and facts["diverging"] == {"3": 126 / 128}
    assert facts["victims"][0]["layer"] == first and facts["outside"] == 0
    assert json_of("formula", QWEN, wrong, "--layout", "LBHNC")["first"] is None
    spec = kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=584, dtype="uint8", alignment=576)
    groups = [kv.KVCacheGroupSpec([f"layers.{i}" for i in range(4)], spec)]
    packed = tmp_path / "packed.json"
    capture.save(kv.get_kv_cache_config_from_groups(groups, 0, "BLNHC", num_gpu_blocks_override=100), packed)
    done = run("formula", packed, "--classic", "block-stride-length", "--layer", "layers.3", "--block", 99)
    assert done.exit_code == 1 and "112,320 bytes that it touches" in " ".join(done.stdout.split())
    facts = json_of("formula", packed, "layer_offset + block * block_stride", "--length", "page_bytes")
    assert facts["share"] == 0 and facts["checked"] == 400
    for args in ((QWEN, wrong, "--layout", "LBNHC"), (QWEN, "--classic", "flat-slot"), (packed, "0", "--length", 0)):
        done = run("formula", *args, "--out", tmp_path / "map.png")
        assert done.exit_code in (0, 1) and (tmp_path / "map.png").read_bytes()[:5] == b"\x89PNG\r"
    assert "must end in .png" in refused("formula", QWEN, "0", "--out", tmp_path / "map.pdf")
    done = run("formula", QWEN, "--classic", "flat-slot", "--layout", "LBNHC")
    assert done.exit_code == 0 and "does no harm" in done.stdout
    assert json_of("formula", QWEN, "--layout", "BLNHC")["names"]["block_stride"]["first_layer"] == 1_835_008
    assert "int32-elements" in run("formula", QWEN).stdout
    assert "is not known" in refused("formula", QWEN, "block", "--classic", "nosuch")
    for args in (("",), ("block.x",), ("block", "--layer", "no"), ("block", "--layer", "-1"),
                 ("block", "--block", 64), ("block", "--block", "x"), ("--classic", "no"),
                 ("block", "--classic", "flat-slot"), ("block", "--length", "-1"), ("(" * 3000,)):
        refused("formula", QWEN, *args)


def test_lint_of_a_capture_whose_kernel_blocks_have_no_plan():
    """vllm#54877: the sizes that it was captured with are the fault."""
    padded = ROOT / "notebooks" / "data" / "cases" / "vllm-54877.json"
    first = json_of("lint", padded, status=1)["findings"][0]
    assert (first["rule"], first["numbers"]["asked_bytes"], first["numbers"]["across_step"]) == (
        "padded-split", 606_208, 49_152)


def test_shape():
    """LMCache#4463 and kvcached#321."""
    (one,) = json_of("shape", "(100, 8, 16, 256)", "--itemsize", 2)["tensors"]
    assert "BHNC" in {"".join(reading["axes"]) for reading in one["readings"]}
    assert "Ambiguous" in run("shape", "(2, 2, 16, 2, 128)").stdout
    text = "TMA dims (128, 64, 1, 49408, 1) inner first, byte strides (2, 256, 256, 2064384, 0)"
    assert "1,041" in run("shape", text).stdout and "1,041" in run("shape", text, "--itemsize", 2).stdout
    assert "Ambiguous" in run("shape", "-", stdin="(1000, 2, 16, 256)").stdout
    assert run("shape", "(7, 0)").exit_code in (1, 2)
    no_item_size = text.replace("(2, 256, 256,", "(256, 256,")
    for wrong in ("", "hello", "(((((" * 1000, no_item_size, "(64, 8, 16, 256) stride (1, 2)"):
        refused("shape", wrong)


def test_verify():
    facts = json_of("verify", "llama-tiny", "--device", "cpu", "--blocks", 4)
    size = json_of("explain", "llama-tiny", "--blocks", 4)["size_bytes"]
    assert facts["ok"] and facts["bytes_checked"] == size and facts["mismatches"] == []
    assert "lie where the address map" in run("verify", "llama-tiny", "--blocks", 4).stdout


def test_a_failed_proof_is_status_1(monkeypatch):
    from kvlayout.memory import probe
    from kvlayout.proof import Mismatch, Report
    wrong = Mismatch(0, 5, "a", 0, 0, 0, 5, "K", b"\1", b"\2")
    monkeypatch.setattr(probe, "verify", lambda cache: Report(10, 0, 1.0, 1, 1, (wrong,)))
    assert json_of("verify", "llama-tiny", status=1)["mismatched_bytes"] == 1
    assert run("verify", "llama-tiny").exit_code == 1


def test_diff_of_layouts():
    facts = json_of("diff", "LBNHC", "LBHNC", status=1)
    # Of 8 × 16 cells only (0, 0) and (7, 15) coincide.
    assert facts["byte_share"] == 126 / 128 and facts["page_share"] == 1
    assert facts["bytes_elsewhere"] == 64 * 28 * 126 * 512
    assert facts["first"] == {"layer": "model.layers.0.self_attn.attn", "block": 0, "head": 0, "state": 1, "byte": 0,
                              "offset_a": 4096, "offset_b": 512}
    assert json_of("diff", "NHD", "LBNHC")["first"] is None
    assert "at the same offset in both" in run("diff", "NHD", "LBNHC").stdout


def test_diff_tells_both_block_strides_of_a_captured_cache():
    case = ROOT / "notebooks" / "data" / "cases" / "vllm-55431.json"
    first = json_of("diff", "BLHNC", "LBNHC", "--model", case, status=1)["first"]
    assert first["block"] == 1 and {3_469_056, 41_984} <= set(first.values())


def test_diff_of_files(captured):
    assert json_of("diff", captured["BLNHC"], captured["BLHNC"], status=1)["byte_share"] == 126 / 128
    assert json_of("diff", captured["BLNHC"], captured["BLNHC"])["bytes_elsewhere"] == 0
    assert "two layouts, or two files" in refused("diff", captured["BLNHC"], "LBNHC")
    assert "layout" in refused("diff", "LBNHC", "XYZ")


def test_log(tmp_path):
    path = tmp_path / "vllm.log"
    path.write_text("GPU KV cache size: 2,440,192 tokens\n")
    (fact,) = json_of("log", QWEN, path, "--blocks", 152_512)["facts"]
    assert (fact["verdict"], fact["said"]) == ("agrees", "2,440,192 tokens")
    assert json_of("log", QWEN, path, status=1)["facts"][0]["verdict"] == "differs"
    text = run("log", QWEN, "-", stdin="Available KV cache memory: 0.01 GiB").stdout
    assert text.startswith("CAN'T BE  line 1, available memory: 0.01 GiB")
    assert "states nothing" in refused("log", QWEN, "-", stdin="hello")
    assert "so is the model" in refused("log", "-", "-", stdin="hello")


def test_transfer():
    facts = json_of("transfer", QWEN, "--request", "1,2,5")
    assert facts["selections"]["one request"] == {
        "num_runs": 56, "total_bytes": 5_505_024, "shortest_bytes": 65_536, "longest_bytes": 131_072,
        "runs": {"65536": 28, "131072": 28}}
    assert facts["request_by_layout"]["BLNHC"]["runs"] == {"1835008": 1, "3670016": 1}
    assert facts["request_by_layout"]["LBNHC"] == facts["selections"]["one request"]
    assert json_of("transfer", QWEN, "--request", "[1-2, 5]") == facts
    for wrong in ("", "1,x", "99999", "1.5"):
        refused("transfer", QWEN, "--request", wrong)


def test_a_transfer_takes_no_longer_in_a_large_pool():
    begin = time.process_time()
    facts = json_of("transfer", QWEN, "--blocks", 3_000_000)
    assert time.process_time() - begin < 5
    assert facts["request_by_layout"]["LBNHC"]["runs"] == {f"{2_999_999 * 65_536}": 28}
    assert json_of("transfer", QWEN, "--blocks", 2**34)["selections"]["one layer"]["runs"] == {f"{2**50}": 1}


def test_an_empty_pool_has_nothing_to_move():
    assert "leave nothing to move" in refused("transfer", QWEN, "--blocks", 0)
    assert json_of("transfer", QWEN, "--blocks", 1)["selections"]["one request"]["num_runs"] == 0


def test_a_transfer_without_head_slots_to_share():
    facts = json_of("transfer", QWEN, "--backend", "ROCM_ATTN")["selections"]
    assert "2 head slots that aren't its 8 heads" in facts["one head shard"]["refused"]
    assert facts["one block"]["num_runs"] and "can't" in run("transfer", QWEN, "--backend", "ROCM_ATTN").stdout


def test_names():
    assert json_of("names", "HND")["LBHNC"]["FlashInfer"] == "HND"
    assert list(json_of("names")) == list(kv.KVCacheLayout.__members__)
    assert "fingerprint" not in json_of("names", "HND")["LBHNC"]
    reason = refused("names", "ABC")
    assert "neither a layout nor a preset" in reason and "LBHNC" in reason and "a preset's name or a file" in reason
    assert "blocks=5" in refused("names", "HND", "--blocks", 5)


@pytest.mark.parametrize("choices", [(), ("--layout", "BHLNC"), ("--tp", 2), ("--blocks", 9), ("--kv-dtype", "fp8"),
                                     ("--block-size", 32), ("--backend", "FLASHINFER")],
                         ids=["plain", "layout", "tp", "blocks", "kv-dtype", "block-size", "backend"])
@pytest.mark.parametrize("model", MODELS)
def test_names_of_a_cache_has_the_fingerprint_of_explain(model, choices):
    explained = run("explain", model, *choices, "--json")
    if explained.exit_code:
        assert refused("names", model, *choices) == explained.stderr
        return
    facts = json.loads(explained.stdout)
    ((name, words),) = json_of("names", model, *choices).items()
    assert (name, words.pop("fingerprint")) == (facts["layout"], facts["fingerprint"])
    assert words == json_of("names", name)[name]
    assert facts["fingerprint"] in run("names", model, *choices).stdout


def test_names_of_a_file_and_of_stdin(captured):
    text = captured["text"].read_text()
    layout, words = next(iter(json_of("names", captured["text"]).items()))
    assert layout == "BLHNC" and words["fingerprint"] == json_of("explain", captured["BLHNC"])["fingerprint"]
    assert json_of("names", "-", stdin=text) == {layout: words}


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"{", b"{}", b"[1]", b'{"kvlayout": 1}', b"hello",
                                     b"\0" * 99, b'{"kv_cache_config": 3}', b"{" * 100_000,
                                     b"KVCacheConfig(" * 20_000,
                                     b'{"model_type": "qwen3", "num_hidden_layers": 1e400}'])
def test_hostile_files(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    for args in (("explain", path), ("decode", path, "--address", 0), ("transfer", path), ("diff", path, path),
                 ("lint", path), ("formula", path, "0"), ("log", path, path), ("verify", path)):
        refused(*args)
    refused("log", QWEN, path)


@pytest.mark.parametrize("args", [
    ("explain", "no/such-model"), ("explain", "/no/such/file.json"), ("explain", ""), ("explain", "a\0b"),
    ("explain", "x" * 5000), ("explain", QWEN, "--backend", "NOPE"), ("explain", QWEN, "--layout", "NOPE"),
    ("explain", QWEN, "--tp", "0"), ("explain", QWEN, "--tp", "7"), ("explain", QWEN, "--blocks", "-1"),
    ("explain", QWEN, "--kv-dtype", "fp99"), ("explain", QWEN, "--block-size", "0"), ("decode", QWEN),
    ("decode", QWEN, "--slot", "1", "--address", "2"), ("decode", QWEN, "--address", "9" * 5000),
    ("decode", QWEN, "--address", "0xzz"), ("decode", QWEN, "--address", "1", "--base", "no"),
    ("decode", QWEN, "--slot", "1.5"), ("verify", "llama-tiny", "--device", "nope"),
    ("verify", "llama-tiny", "--blocks", "0"), ("verify", QWEN, "--blocks", "999999999"),
    ("explain", QWEN, "--blocks", "9" * 40),
])
def test_bad_arguments(args):
    refused(*args)


def python(*args, stdin=b"", **environment):
    return subprocess.run([sys.executable, "-m", "kvlayout", *args], input=stdin, capture_output=True, timeout=120,
                          cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'widgets'}",
                                         **environment})


def test_as_a_process_with_stdin(captured):
    done = python("decode", "-", "--address", "0x10000", "--json", stdin=captured["text"].read_bytes())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["owners"][0]["layer"] == "model.layers.1.self_attn.attn"
    done = python("explain", "/bin")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"Traceback" not in done.stderr


def test_without_its_extra_it_says_which(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('gone', name='typer')")
    done = python("explain", QWEN, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 2
    assert done.stderr.decode() == "kvlayout: the command line needs typer: pip install 'kvlayout[cli]'\n"
