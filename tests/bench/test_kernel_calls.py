"""The call of a kernel: whatever it does, what comes of it is a finding or an argument error, never a raw one."""

import asyncio

import pytest
import torch

from kvlayout import FullAttentionSpec, KVCacheLayout, LayoutError
from kvlayout.bench import check_reader, check_writer
from kvlayout.bench.examples.paged_decode import gather
from kvlayout.bench.examples.torch_writer import write
from kvlayout.bench.fault import READ_FAULTS, WRITE_FAULTS

SPEC = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="bfloat16")


def checked(kind, after, cases=6):
    """The report on a right writer or reader that does ``after(kv_cache)`` at the end."""
    def writes(key, value, kv_cache, slot_mapping):
        write(key, value, kv_cache, slot_mapping)
        after(kv_cache)

    def reads(kv_cache, block_table, seq_lens, head_size):
        found = gather(kv_cache, block_table, seq_lens, head_size)
        after(kv_cache)
        return found

    check = check_writer if kind == "writer" else check_reader
    report = check(writes if kind == "writer" else reads, SPEC, cases=cases, vary=[])
    assert set(report.counts) <= set(WRITE_FAULTS if kind == "writer" else READ_FAULTS)
    return report


class Unspeakable(Exception):
    def __str__(self):
        raise ZeroDivisionError


ERRORS = {"SystemExit": lambda: SystemExit(3), "GeneratorExit": GeneratorExit, "Unspeakable": Unspeakable,
          "CancelledError": asyncio.CancelledError,
          "BaseException": lambda: BaseException("no"), "RuntimeError": RuntimeError,
          "LayoutError": lambda: LayoutError("a", 1, "is wrong"), "MemoryError": MemoryError}


@pytest.mark.parametrize("kind", ["writer", "reader"])
@pytest.mark.parametrize("name", ERRORS)
def test_whatever_is_raised_is_a_finding(name, kind):
    def raises(kv_cache):
        raise ERRORS[name]()

    report = checked(kind, raises)
    assert report.counts == {"raised": 6} and report.first.message.startswith(f"{name}: ")
    assert report.first.message.endswith(")") and "test_kernel_calls.py, line " in report.first.message


def test_the_user_can_still_stop_it():
    def raises(kv_cache):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checked("writer", raises)


SPOILT = {
    "resize_": lambda cache: cache.resize_(0),
    "set_": lambda cache: cache.set_(torch.zeros(4, dtype=cache.dtype)),
    "transpose_": lambda cache: cache.transpose_(0, 3),
    "squeeze_": lambda cache: cache.unsqueeze_(0),
    "as_strided_": lambda cache: cache.as_strided_(cache.shape, cache.stride(), cache.storage_offset() + 1),
    "data": lambda cache: setattr(cache, "data", cache.clone()),
}


@pytest.mark.parametrize("kind", ["writer", "reader"])
@pytest.mark.parametrize("name", SPOILT)
def test_the_caches_tensor_must_stay_what_it_is(name, kind):
    report = checked(kind, SPOILT[name])
    assert report.counts == {"input-changed": 6}
    assert report.first.message.startswith("kv_cache's shape, strides or memory was changed; ")


def test_torchs_defaults_are_put_back():
    before = torch.get_default_dtype()
    assert checked("writer", lambda cache: torch.set_default_dtype(torch.float64)).ok
    assert torch.get_default_dtype() == before


class Launched:
    """As triton's: kernel[grid](...)."""

    def __getitem__(self, grid):
        return self.run

    def __call__(self, *given):
        raise RuntimeError("can't be called")

    def run(self, *given):
        return None


async def later(*given):
    return None


def step_by_step(*given):
    yield


class Later:
    async def __call__(self, *given):
        return None


class NotCallable:
    pass


@pytest.mark.parametrize(("kernel", "match"), [
    (Launched(), "is a Triton kernel.*triton_writer"), (later, "a coroutine or a generator"),
    (step_by_step, "a coroutine or a generator"), (Later(), "a coroutine or a generator"),
    (NotCallable(), "must be a function"), ("write", "must be a function")],
    ids=["triton", "async", "generator", "async object", "object", "text"])
def test_what_is_no_kernel(kernel, match):
    for check, name in ((check_writer, "writer"), (check_reader, "reader")):
        with pytest.raises(LayoutError, match=match) as error:
            check(kernel, SPEC, cases=1)
        assert error.value.argument == name


@pytest.mark.parametrize("lazy", [lambda one: torch._neg_view(-one), lambda one: one.clone().requires_grad_(),
                                  lambda one: one.as_subclass(type("Mine", (torch.Tensor,), {})),
                                  lambda one: one.expand(1, *one.shape)[0]],
                         ids=["negated", "with a gradient", "subclass", "expanded"])
def test_right_tensors_of_any_kind_are_right(lazy):
    def reads(kv_cache, block_table, seq_lens, head_size):
        return tuple(map(lazy, gather(kv_cache, block_table, seq_lens, head_size)))

    assert check_reader(reads, SPEC, cases=12, vary=["num_kv_heads"]).ok


class Sealed(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), kwargs=None):
        raise PermissionError("sealed")


@pytest.mark.parametrize(("odd", "message"), [
    (lambda one: one.to_sparse(), "nested or sparse"),
    (lambda one: torch.nested.nested_tensor(list(one)), "nested or sparse"),
    (lambda one: one.as_subclass(Sealed), "can't be read: PermissionError: sealed"),
    (lambda one: torch.sum, "not the two tensors")], ids=["sparse", "nested", "sealed", "function"])
@pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype in torch
def test_odd_tensors_are_a_finding(odd, message):
    def reads(kv_cache, block_table, seq_lens, head_size):
        return tuple(map(odd, gather(kv_cache, block_table, seq_lens, head_size)))

    report = check_reader(reads, SPEC, cases=6, vary=[])
    assert report.counts == {"wrong-shape": 6} and message in report.first.message


def test_head_size_is_told_by_place_where_it_has_no_name():
    def reads(kv_cache, block_table, seq_lens, head_size, /):
        return gather(kv_cache, block_table, seq_lens, head_size)

    assert check_reader(reads, SPEC, cases=30, vary=["head_size", "head_size_v"]).ok


def test_rows_behind_the_tokens_are_padding():
    def by_rows(key, value, kv_cache, slot_mapping):
        slots = torch.full((len(key),), 1)  # as a grid over key's rows reads on behind slot_mapping
        slots[:len(slot_mapping)] = slot_mapping
        write(key, value, kv_cache, slots)

    report = check_writer(by_rows, SPEC, cases=60, vary=[])
    assert not report and report.always == ("padded key and value",)
    failed, cases = report.by_feature["padded key and value"]
    assert failed == cases == report.failed > 5
    assert check_writer(write, SPEC, cases=60, vary=[])


def test_whole_prompts_are_written_too():
    def first_tile(key, value, kv_cache, slot_mapping):
        write(key, value, kv_cache, slot_mapping[:32])

    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="bfloat16")
    report = check_writer(first_tile, spec, cases=160, vary=[])
    failed, cases = report.by_feature["over 32 tokens"]
    assert report.always == ("over 32 tokens",) and 5 < failed <= cases <= 14
    # Each of vLLM's six layouts gets some.
    assert {layout for layout, (failed, _) in report.by_layout.items() if failed} == set(KVCacheLayout.__members__)


@pytest.mark.parametrize("kernel, missing", [
    (lambda key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, scale: None, "slot_mapping"),
    (lambda key, value, kv_cache: None, "too many positional arguments"),
])
def test_a_writer_of_other_arguments_is_refused(kernel, missing):
    with pytest.raises(LayoutError, match="can't be called with key, value, kv_cache, slot_mapping") as error:
        check_writer(kernel, SPEC, cases=1)
    assert missing in error.value.rule and "kv_cache[..., :head_size]" in error.value.cure


def test_a_reader_of_other_arguments_is_refused():
    with pytest.raises(LayoutError, match="can't be called with kv_cache, block_table, seq_lens"):
        check_reader(lambda kv_cache, block_table: None, SPEC, cases=1)
    assert check_reader(lambda cache, table, lens, *, head_size: gather(cache, table, lens, head_size), SPEC, cases=6)
