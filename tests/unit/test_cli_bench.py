"""The command line's score and matrix: exact values, exit status, JSON, and input that is none."""

import json

import pytest
from typer.testing import CliRunner

import kvlayout as kv
from kvlayout import capture
from kvlayout.bench import MEASURES, backend_matrix, score_layouts
from kvlayout.cli.app import app

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"


def run(*args, stdin=None):
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)


def json_of(*args, status=0, stdin=None):
    done = run(*args, "--json", stdin=stdin)
    assert done.exit_code == status, (done.output, done.exception)
    return json.loads(done.stdout)


def refused(*args):
    done = run(*args)
    assert done.exit_code == 2 and done.stdout == "" and isinstance(done.exception, SystemExit), done.output
    assert done.stderr.startswith("kvlayout: ") and len(done.stderr.strip().splitlines()) == 1
    return done.stderr


def words(done):
    return " ".join(done.stdout.split())


def test_scores_as_json_are_the_librarys_ranked():
    found = json_of("score", LLAMA, "--blocks", 100_000, "--sort", "head shard runs")
    assert (found["num_layers"], found["num_blocks"], found["page_size_bytes"]) == (80, 100_000, 65_536)
    assert len(found["scores"]) == 120
    ranks = [one["measures"]["head shard runs"] for one in found["scores"]]
    assert ranks == sorted(ranks) and found["scores"][0]["layout"] == "BHLNC"
    spec = kv.FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    expected = {one.layout.name: one.measures for one in score_layouts(spec, 100_000, 80)}
    assert {one["layout"]: one["measures"] for one in found["scores"]} == expected
    assert [one["layout"] for one in found["scores"] if one["in_vllm"]][0] == "BHLNC"


def test_the_score_table():
    done = run("score", LLAMA, "--blocks", 100_000, "--top", 2)
    assert done.exit_code == 0 and max(map(len, done.stdout.splitlines())) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line[:5].isupper()}
    assert rows["BLHNC*"] == ["1", "100,000", "80", "8", "524,288", "128", "-PMGVC-"]
    assert rows["LBNHC*"] == ["80", "1", "1,280", "1", "524,288", "128", "KPM-V--"]
    assert len([name for name in rows if name.endswith("*")]) == 6 and len(rows) == 8


@pytest.mark.parametrize("sort", MEASURES)
def test_any_measure_ranks_the_better_first(sort):
    ranks = [one["measures"][sort] for one in json_of("score", "llama-tiny", "--sort", sort)["scores"]]
    assert ranks == sorted(ranks, reverse=MEASURES[sort].better == "more")


def test_score_of_hybrids_captures_and_other_choices(tmp_path):
    assert json_of("score", NEXT)["page_size_bytes"] == 1_114_112
    first = json_of("score", NEXT, "--tensor", 0)
    assert first["scores"][0]["measures"]["write sectors"] == 34_304  # a recurrent state, whole
    path = tmp_path / "captured.json"
    capture.save(kv.make_plan(kv.Selection(model="llama-tiny", num_blocks=8)).config, path)
    assert json_of("score", path)["num_blocks"] == 8
    assert json_of("score", "-", stdin=path.read_text())["scores"] == json_of("score", path)["scores"]
    short, long = (json_of("score", "llama-tiny", "--context", n)["scores"][0]["measures"]["read sectors"]
                   for n in (16, 32))
    assert long == 2 * short
    mla = json_of("score", "deepseek-ai/DeepSeek-V3", "--kv-dtype", "fp8", "--backend", "FLASHMLA", "--shards", 1)
    assert mla["scores"][0]["measures"]["padding"] in (0, 1)


def test_bad_scores():
    assert "is not a measure" in refused("score", LLAMA, "--sort", "speed")
    assert "must be below the 1 tensors" in refused("score", LLAMA, "--tensor", 1)
    assert "context_tokens" in refused("score", LLAMA, "--context", 0)
    assert "top" in refused("score", LLAMA, "--top", -1)
    assert "num_blocks" in refused("score", LLAMA, "--blocks", 0)
    assert "is not a preset" in refused("score", "nothing")


def test_the_matrix_as_json_is_the_librarys():
    found = json_of("matrix", "0.31.0", "--platform", "rocm", "--no-mla")
    made = backend_matrix("0.31.0", platform="rocm", mla=False)
    assert [row["backend"] for row in found["rows"]] == [row.backend for row in made]
    assert found["excluded"] == made.excluded
    for row, ours in zip(found["rows"], made):
        assert {name: cell["state"] for name, cell in row["cells"].items()} == {
            name: cell.state for name, cell in ours.cells.items()}
    sizes = {row["backend"]: row["facts"]["kernel_block_sizes"] for row in json_of("matrix")["rows"]}
    assert sizes["CPU_ATTN"] == [{"multiple_of": 32}] and sizes["B12X"] == [64, 128]


def test_the_matrix_table():
    done = run("matrix", "0.33.0", "--platform", "cuda", "--kv-cache-dtype", "fp8", "--no-mla", "--head-size", 128,
               "--block-size", 16)
    assert done.exit_code == 0 and max(map(len, done.stdout.splitlines())) <= 85  # the longest name is whole
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.count(" yes ") > 1
            or " 1st " in line or " if " in line}
    assert rows["FLASH_ATTN"] == ["yes", "1st", "yes", "yes", "yes", "yes"]
    assert rows["FLASHINFER"] == ["if", "if", "if", "yes", "if", "if"]
    text = words(done)
    assert "FLASHINFER, LBHNC: first choice if capability is not None and capability.major == 10; supported " \
           "otherwise." in text
    assert ("FLASH_ATTN: whether it takes KV cache dtype fp8 depends: "
            "flash_attn_supports_kv_cache_dtype(kv_cache_dtype)." in text)
    assert "STEP5_DSA" not in text and "CPU_ATTN" not in text


def test_the_diff():
    done = run("matrix", "0.31.0", "--diff", "0.32.0")
    assert done.exit_code == 1
    text = words(done)
    assert "new: ULTRAQUANT" in text and "KPOOL_TAIL, BLHNC: refused → first choice" in text
    assert "FLASHMLA_SPARSE, kernel_block_sizes: 64 → multiples of 64" in text
    found = json_of("matrix", "0.32.0", "--diff", "0.33.0", status=1)
    assert found["renamed"] == {"MiniMaxM3IndexerMSABackend": "nvidia.indexer_msa.MiniMaxM3IndexerMSABackend"}
    assert {"backend": "TRITON_FLASH_ATTN", "what": "platforms", "old": ["cuda"], "new": ["cuda", "xpu"]} \
        in found["facts"]
    sizes = json_of("matrix", "0.31.0", "--diff", "0.32.0", status=1)["facts"]
    assert {"backend": "FLASHMLA_SPARSE", "what": "kernel_block_sizes", "old": [64],
            "new": [{"multiple_of": 64}]} in sizes
    same = run("matrix", "0.33.0", "--diff", "0.33.0")
    assert same.exit_code == 0 and "nothing of what is recorded changed" in words(same)


def test_bad_matrices():
    assert "vllm_version" in refused("matrix", "0.28.0") and "vllm_version" in refused("matrix", "--diff", "1.0")
    assert "is not a platform of vLLM" in refused("matrix", "--platform", "tpu")
    assert "dtype" in refused("matrix", "--dtype", "float7")
    assert "head_size" in refused("matrix", "--head-size", 0)
