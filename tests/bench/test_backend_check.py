"""What is wrong with a backend's class is a finding: what it lacks, answers that are odd, raise or change."""

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import replace
from itertools import cycle

import pytest

import kvlayout as kv
from kvlayout.bench import PrototypeBackend, check_backend, try_backend
from kvlayout.errors import LayoutError
from kvlayout.interior import Field, Interior
from tests.hostile_backends import HOSTILE

QWEN = kv.Selection(num_blocks=8)
SPEC = kv.FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")


class Mine(PrototypeBackend):
    layouts = ("BLHNC", "LBHNC")
    kernel_block_sizes = (16, 32)


def test_what_is_missing_is_named():
    trial = try_backend(type("Empty", (), {}), QWEN)
    assert (trial.backend, trial.alone, trial.plan, trial.pages) == (None, None, None, ())
    assert trial.findings[0].rule == "missing-method"
    assert trial.findings[0].message.startswith("Empty has no supported_kv_cache_layouts()")
    assert "classmethod" in trial.findings[0].cure
    notes = [one.numbers["method"] for one in trial.findings if one.severity == "note"]
    assert notes == ["get_supported_kernel_block_sizes", "customize_spec", "interior"]
    for odd in (None, 5, "FLASH", int):
        assert not try_backend(odd, QWEN).ok


class Base(ABC):
    @abstractmethod
    def get_impl_cls(self):
        """What vLLM asks for."""


@pytest.mark.parametrize(("methods", "part"), [
    (dict(supported_kv_cache_layouts=lambda self: None), "make the method a classmethod"),
    (dict(supported_kv_cache_layouts=classmethod(lambda cls: ("NHD",))), "not a layout of vLLM"),
    (dict(supported_kv_cache_layouts=classmethod(lambda cls: ())), "must be None, or a tuple"),
    (dict(get_supported_kernel_block_sizes=classmethod(lambda cls: [0])), "must be at least 1"),
    (dict(customize_spec=classmethod(lambda cls, spec: None)), "must return a spec"),
    (dict(customize_spec=classmethod(lambda cls, spec: spec.nothing)), "AttributeError"),
    (dict(interior=classmethod(lambda cls, spec: Interior((Field("K", 0, 3),)))), "hold 3 bytes a state"),
    (dict(kernel_block_sizes=(48,)), "is handed blocks of 16 tokens, but takes 48"),
    (dict(kernel_block_sizes=(48,), layouts=("LBNHC",)), "has no divisor that every backend takes"),
])
def test_wrong_answers_are_findings(methods, part):
    trial = try_backend(type("Odd", (Mine,), methods), replace(QWEN, block_size=16))
    assert not trial.ok
    error = next(one for one in trial.findings if one.is_error)
    assert part in f"{error.message} {error.cure}"
    assert len([one for one in trial.findings if one.is_error]) == 1
    assert not trial.pages or error.rule == "kernel-block"


def test_warnings():
    odd = type("Odd", (Mine, Base), {"customize_spec": classmethod(lambda cls, spec: replace(spec, block_size=32))})
    found = {one.rule: one for one in check_backend(odd, [SPEC, replace(SPEC, num_kv_heads=4)])}
    assert found["abstract-method"].numbers == {"methods": ["get_impl_cls"]}
    assert found["changed-block"].severity == "warning" and "block_size" in found["changed-block"].message
    assert check_backend(Mine, [SPEC]) == [one for one in check_backend(Mine) if one.severity == "note"]


METHODS = ("supported_kv_cache_layouts", "get_supported_kernel_block_sizes", "customize_spec", "interior", "get_name",
           "is_mla")


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Direct(BaseException):
    """Neither an Exception nor the end of a process."""


ERRORS = (ZeroDivisionError("by nothing"), Mute(), SystemExit(3), GeneratorExit(), Direct("x"), StopIteration())


def assert_told(odd, method, error):
    (told,) = [one for one in try_backend(odd, QWEN).findings if one.is_error]
    assert told.rule == "wrong-answer" and told.numbers == {"argument": f"{method} of Odd"}
    assert type(error).__name__ in told.message


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_raises_is_a_finding(method, error):
    def ask(cls, spec=None):
        raise error
    odd = type("Odd", (Mine,), {method: classmethod(ask)})
    assert_told(odd, method, error)
    with pytest.raises(LayoutError):
        kv.make_plan(replace(QWEN, backend="Odd"), backends=[odd])


@pytest.mark.parametrize("layout", ["LBNHC", "BLHNC"])  # in the second blocks are handed out without asking
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_block_sizes_that_raise_for_a_spec_are_a_finding(layout, error):
    def ask(cls, spec=None):
        if spec is not None:
            raise error
        return [16]
    assert_told(type("Odd", (Mine,), {"layouts": (layout,), "get_supported_kernel_block_sizes": classmethod(ask)}),
                "get_supported_kernel_block_sizes", error)


def test_an_interrupt_is_no_finding():
    odd = type("Odd", (Mine,), {"customize_spec": classmethod(lambda cls, spec: (_ for _ in ()).throw(
        KeyboardInterrupt()))})
    with pytest.raises(KeyboardInterrupt):
        try_backend(odd, QWEN)


@pytest.mark.parametrize("odd", HOSTILE.values(), ids=HOSTILE)
def test_hostile_objects_are_findings(odd):
    trial = try_backend(odd, QWEN)
    assert not trial.ok and trial.findings[0].rule in ("wrong-answer", "missing-method")
    assert [one for one in check_backend(odd, [SPEC]) if one.is_error]
    with suppress(LayoutError):  # and nothing else
        kv.make_plan(replace(QWEN, backend="Odd"), backends=[odd])


@pytest.mark.parametrize(("field", "value"), [("num_kv_heads", 1), ("head_size", 64), ("head_size_v", 8),
                                              ("dtype", "uint8")])
def test_a_page_of_other_content_is_told(field, value):
    odd = type("Odd", (Mine,), {"customize_spec": classmethod(lambda cls, spec: replace(spec, **{field: value}))})
    told = next(one for one in try_backend(odd, QWEN).findings if one.rule == "changed-content")
    assert told.severity == "warning" and told.numbers == {"changed": [field]}
    assert f"{field} {getattr(SPEC, field)} to {value}" in told.message


def test_no_backend_of_vllm_changes_what_a_page_is_for():
    specs = [replace(SPEC, kv_quant_mode=mode, block_size=64) for mode in kv.KVQuantMode]
    for backend in kv.backends().values():
        found = [one for spec in specs for one in check_backend(backend, [spec])]
        assert {one.rule for one in found} <= {"wrong-answer"}, backend  # some can't hold such pages


@pytest.mark.parametrize(("method", "answers"), [
    ("supported_kv_cache_layouts", [("BLHNC",), ("LBNHC",)]), ("get_supported_kernel_block_sizes", [(16,), (32,)]),
    ("customize_spec", [replace(SPEC, page_size_padded=size) for size in (100_000, 200_000)]),
    ("interior", [None, Interior((Field("K", 0, 128, 16), Field("V", 256, 128, 16)))])])
def test_two_answers_to_one_question_are_an_error(method, answers):
    given = cycle(answers)
    odd = type("Odd", (Mine,), {method: classmethod(lambda cls, spec=None: next(given))})
    (told,) = [one for one in check_backend(odd, [SPEC]) if one.is_error]
    assert (told.rule, told.numbers) == ("unsteady-answer", {"method": method})


def test_a_name_is_looked_up():
    trial = try_backend("FLASHINFER", QWEN)
    assert trial.ok and trial.backend.name == "FLASHINFER" and trial.pages == try_backend(
        kv.get_backend("FLASHINFER"), QWEN).pages
    (told,) = check_backend("FLASHINFRA")
    assert told.rule == "wrong-answer" and "Did you mean FLASHINFER" in told.cure


@pytest.mark.parametrize(("given", "argument"), [
    (dict(specs=5), "specs"), (dict(specs=SPEC), "specs"), (dict(specs=[5]), "specs"), (dict(specs="ab"), "specs"),
    (dict(vllm_version=[]), "vllm_version"), (dict(vllm_version="9"), "vllm_version")])
def test_bad_questions_of_a_check(given, argument):
    with pytest.raises(LayoutError) as caught:
        check_backend(Mine, **given)
    assert caught.value.argument == argument


@pytest.mark.parametrize("written, meant", [
    ("layout", "layouts"), ("kernel_block_size", "kernel_block_sizes"), ("page_alignement", "page_alignment"),
    ("block_stride_aligment", "block_stride_alignment")])
def test_a_misspelt_attribute_is_told(written, meant):
    mine = type("Mine", (type("Base", (PrototypeBackend,), {written: ("LBNHC",)}),), {"stages": 3})
    (found,) = [one for one in check_backend(mine) if one.rule == "misspelt-name"]
    assert (found.severity, found.numbers, found.cure) == ("warning", {"name": written}, f"Did you mean {meant}")
    assert not [one for one in check_backend(type("Mine", (PrototypeBackend,), {meant: None}))
                if one.rule == "misspelt-name"]
