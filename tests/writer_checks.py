"""A writer put to the test, as several files of tests do it: small pages, near offsets, and kinds of fault known."""

from kvlayout import FullAttentionSpec
from kvlayout.bench import VARY, check_writer
from kvlayout.bench.fault import WRITE_FAULTS

SPEC = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="bfloat16")
NEAR = VARY[:-1]  # without "far_blocks"


def check(writer, spec=SPEC, *, cases=60, vary=NEAR, **rest):
    report = check_writer(writer, spec, cases=cases, vary=vary, **rest)
    assert set(report.counts) <= set(WRITE_FAULTS) and [one.kind for one in report.faults] == list(report.counts)
    return report
