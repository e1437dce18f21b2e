"""The runner of the conformance fuzzing, as far as it goes without vLLM: questions, counting, output, exit status.

In vLLM's place stands our own answer, as it is or doctored.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from random import Random

import pytest

from kvlayout.errors import LayoutError
from kvlayout.spec import KVQuantMode
from kvlayout.spec_io import SPEC_TYPES, spec_from_dict
from kvlayout.upstream import conformance
from kvlayout.upstream.fuzz import draw, draw_layers, facts
from kvlayout.upstream.fuzz.compare import Result, compare, merged
from kvlayout.upstream.fuzz.compare import draw as draw_question
from kvlayout.upstream.fuzz.connectors import transfer_config
from kvlayout.upstream.fuzz.kind import BrokenDouble, Double, Kind, Refusal, World, answer_of_ours, answer_of_vllm
from kvlayout.upstream.older_release import unpack
from kvlayout.versions import NEWEST, VLLM_VERSIONS

WORLD = World(NEWEST, backends=("FLASH_ATTN", "TRITON_ATTN", "ROCM_ATTN", "FLASHINFER"),
              connectors=("NixlConnector", "MultiConnector"))
OLD = World("0.29.0", frozenset(["RSWASpec", "CircularBufferSpec", "block_stride_alignment.MultipleOf",
                                 "FullAttentionSpec.dcp_sharded", "KVQuantMode.OCTAVE_K3V4"]))
KINDS = conformance.kinds()
NEEDS_TORCH = ("views", "selections")


def agreeing(kind: Kind) -> Kind:
    """The kind with our own answer in vLLM's place; a refusal is what vLLM would raise."""
    def theirs(question, world):
        try:
            return kind.ours(question, world)
        except LayoutError as error:
            raise ValueError(str(error)) from error
    return replace(kind, theirs=theirs)


@pytest.fixture(params=[name for name in KINDS if name not in NEEDS_TORCH])
def kind(request) -> Kind:
    return agreeing(KINDS[request.param])


@pytest.mark.parametrize("name", KINDS)
def test_questions_are_json_and_the_same_for_a_number(name):
    for number in range(30):
        question = draw_question(KINDS[name], number, 7, WORLD)
        assert json.loads(json.dumps(question)) == question
        assert draw_question(KINDS[name], number, 7, WORLD) == question
    drawn = {json.dumps(draw_question(KINDS[name], number, 7, WORLD)) for number in range(30)}
    assert len(drawn) > 20


def test_each_kind_reaches_answers_and_refusals(kind):
    result = compare(kind, 250, 1, WORLD)
    assert (result.cases, result.disagreements) == (250, 0), result.first
    assert result.values + result.refused == 250
    assert result.refused < 0.6 * 250, "steer the generator: most of what it draws is refused"
    assert result.refused_with == ({"ValueError": result.refused} if result.refused else {})


@pytest.mark.parametrize("name", NEEDS_TORCH)
def test_kinds_with_views_reach_answers(name):
    pytest.importorskip("torch", reason="torch isn't installed here")
    result = compare(agreeing(KINDS[name]), 40, 1, WORLD)
    assert result.disagreements == 0 and result.values > 10 and result.refused < 0.6 * 40, result.first


def test_specs_of_every_class_are_drawn_and_most_are_possible():
    rng = Random(0)
    specs = [draw.any_spec(rng, WORLD) for _ in range(2000)]
    assert {spec["type"] for spec in specs} == set(SPEC_TYPES) - {"UniformTypeKVCacheSpecs",
                                                                  "EncoderOnlyAttentionSpec"}
    made = [spec_from_dict(spec) for spec in specs if draw_layers.is_possible(spec)]
    assert len(made) > 0.8 * len(specs)
    assert {spec.page_size_padded is None for spec in made} == {True, False}
    assert {getattr(spec, "kv_quant_mode", None) for spec in made} > set(KVQuantMode)


def test_what_a_release_lacks_is_not_drawn():
    rng = Random(0)
    for _ in range(1500):
        spec = draw.any_spec(rng, OLD)
        assert spec["type"] not in OLD.lacking
        assert not {f"{spec['type']}.{name}" for name in spec} & OLD.lacking
        assert spec.get("kv_quant_mode") != "OCTAVE_K3V4"
        assert not isinstance(spec.get("block_stride_alignment"), dict)


def test_every_layer_of_a_drawn_model_has_a_possible_spec():
    rng = Random(0)
    for _ in range(200):
        model = draw_layers.draw_layers(rng, WORLD)
        names = [name for name, _ in model["layers"]]
        assert names == list(dict.fromkeys(names)) and names
        assert all(spec_from_dict(model["specs"][index]).num_states > 0 for _, index in model["layers"])


def doctored(kind: Kind) -> Kind:
    """vLLM's side is wrong for one question in three."""
    def theirs(question, world):
        answer = kind.theirs(question, world)
        wrong = json.dumps(question).count("1") % 3 == 0
        return "something else" if wrong else answer
    return replace(kind, theirs=theirs)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_doctored_answer_is_a_disagreement_in_full(kind, jobs):
    result = compare(doctored(kind), 200, 3, WORLD, jobs)
    assert result.cases == result.values + result.refused + result.disagreements == 200
    assert result.disagreements > 20 and len(result.first) == 3
    for one in result.first:
        assert draw_question(kind, one["number"], 3, WORLD) == one["question"]
        assert one["theirs"] == "something else" and one["ours"] != one["theirs"]
    assert [one["number"] for one in result.first] == sorted(one["number"] for one in result.first)


def judged(ours, theirs) -> Result:
    kind = Kind("toy", "a toy", "nothing", lambda rng, world: {}, ours, theirs)
    return compare(kind, 1, 0, WORLD)


def refuse(question, world):
    raise LayoutError("size", 0, "is too small")


def fail(question, world):
    raise RuntimeError("a fault of ours")


def assertion(question, world):
    raise AssertionError("vLLM says no")


@pytest.mark.parametrize(("ours", "theirs", "counted"), [
    (lambda q, w: 1, lambda q, w: 1, "values"),
    (lambda q, w: 1, lambda q, w: 2, "disagreements"),
    (refuse, assertion, "refused"),
    (refuse, lambda q, w: 1, "disagreements"),
    (lambda q, w: 1, assertion, "disagreements"),
    (fail, assertion, "disagreements"),  # only a LayoutError refuses; anything else is a fault of ours
])
def test_how_two_answers_count(ours, theirs, counted):
    result = judged(ours, theirs)
    assert [name for name in ("values", "refused", "disagreements") if getattr(result, name)] == [counted]
    assert len(result.first) == (counted == "disagreements")


def test_a_fault_of_the_test_is_no_answer():
    with pytest.raises(BrokenDouble, match="vLLM asked for size beside name"):
        judged(refuse, lambda q, w: Double(name=1).size)
    with pytest.raises(LayoutError):
        judged(refuse, refuse)
    assert isinstance(answer_of_ours(replace(KINDS["strides"], ours=refuse), {}, WORLD), Refusal)
    assert answer_of_vllm(replace(KINDS["strides"], theirs=assertion), {}, WORLD).error == "AssertionError"


def test_what_is_left_out_is_counted_apart():
    kind = Kind("toy", "a toy", "odd numbers", lambda rng, world: {"n": rng.randrange(10)}, lambda q, w: q["n"],
                lambda q, w: q["n"], lambda q, w: q["n"] % 2 == 1)
    result = compare(kind, 50, 0, WORLD)
    assert (result.cases, result.values) == (50, 50) and result.left_out > 20
    assert "drawn but left out" in result.line()
    with pytest.raises(ValueError, match="left out"):
        compare(replace(kind, is_left_out=lambda q, w: True), 5, 0, WORLD)


def test_parts_of_several_processes_add_up():
    parts = [Result("toy", 5, 3, 1, 1, first=[{"number": 9}]), Result("toy", 4, 2, 0, 2, 7, first=[{"number": 2}])]
    total = merged("toy", parts)
    assert (total.cases, total.values, total.refused, total.disagreements, total.left_out) == (9, 5, 1, 3, 7)
    assert total.first == [{"number": 2}, {"number": 9}]


@pytest.mark.parametrize(("change", "status"), [(agreeing, 0), (lambda kind: doctored(agreeing(kind)), 1)])
def test_the_command_line(monkeypatch, tmp_path, capsys, change, status):
    monkeypatch.setattr(conformance, "installed_world", lambda: (NEWEST, WORLD))
    known = {name: change(kind) for name, kind in KINDS.items()}
    monkeypatch.setattr(conformance, "kinds", lambda: known)
    out = tmp_path / "deep" / "out.json"
    arguments = ["--cases", "60", "--seed", "5", "--jobs", "1", "--kinds", "strides", "kernel blocks",
                 "--expect", NEWEST, "--json", str(out)]
    assert conformance.main(arguments) == status
    printed = capsys.readouterr().out
    assert f"vLLM {NEWEST}, reproduced as {NEWEST}; seed 5" in printed and "Never asked:" in printed
    assert ("something else" in printed) == bool(status)
    written = json.loads(out.read_text())
    assert set(written["kinds"]) == {"strides", "kernel blocks"}
    assert (written["vllm"], written["seed"], written["cases"]) == (NEWEST, 5, 120)
    assert bool(written["disagreements"]) == bool(status)
    with pytest.raises(SystemExit) as caught:
        conformance.main([*arguments, "--expect", "0.29.0"])
    assert caught.value.code == 2


def test_only_the_python_files_of_a_wheel_are_unpacked(tmp_path):
    wheel = tmp_path / "vllm-0.29.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("vllm/version.py", "vllm/v1/layout.py", "vllm/_C.abi3.so", "vllm-0.29.0.dist-info/METADATA"):
            archive.writestr(name, "x = 1\n")
    assert unpack(wheel, tmp_path / "out") == 2
    assert sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")) == [
        "vllm/v1/layout.py", "vllm/version.py"]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/file.py", "")
    with pytest.raises(SystemExit, match="no wheel of vLLM"):
        unpack(wheel, tmp_path / "out")


def test_facts_tell_whole_fractions_and_every_field():
    spec = spec_from_dict({"type": "MLAAttentionSpec", "block_size": 16, "num_kv_heads": 1, "head_size": 8,
                           "dtype": "int8", "tokens_per_state": "1/2", "block_stride_alignment": {"multiple_of": 8}})
    told = facts.spec_facts(spec, frozenset({"MLAAttentionSpec.dcp_sharded"}))
    assert (told["tokens_per_state"], told["block_stride_alignment"]) == ("1/2", {"multiple_of": 8})
    assert "dcp_sharded" not in told and told["cache_role"] == "sparse" and told["page_size_bytes"] == 256
    assert transfer_config(None) is None and transfer_config({"kv_connector": "X"}).kv_connector_module_path is None


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_the_model_that_is_grouped_specially_is_left_out_where_it_is(version):
    question = {"specs": [{"type": "MambaSpec"}, {"type": "MLAAttentionSpec", "tokens_per_state": 4}],
                "layers": [["a", 0], ["b", 1]]}
    assert KINDS["grouping"].is_left_out(question, World(version)) == (version in ("0.30.0", "0.31.0"))
