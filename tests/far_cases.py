"""Far shapes need twice their cache as free memory: a machine that lacks it must say so, and is no failure."""

from kvlayout.bench import KernelReport


def is_far(report: KernelReport, layouts: int, bits: int = 31) -> bool:
    """Whether a report covers offsets past 2^``bits`` in all those layouts; fails if it doesn't and is silent."""
    short = [one for one in report.not_checked if one.startswith("offsets past 2^") and "must be free" in one]
    assert report.far_cases == layouts or any(one.startswith("offsets past 2^31") for one in short)
    return report.far_cases == layouts and (bits == 31 or not short)


def others(report: KernelReport) -> list[str]:
    """What wasn't checked for another reason than memory, or Triton's interpreter, if it is switched on."""
    return [one for one in report.not_checked if "must be free" not in one and "Triton's interpreter" not in one]
