"""Counting the sums of a box against listing them."""

import time
from collections import Counter
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.lattice import count_sums


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(-9, 9)), max_size=4), st.lists(st.integers(-60, 60)))
def test_every_count_by_listing(axes, wanted):
    extents, steps = [n for n, _ in axes], [step for _, step in axes]
    listed = Counter(sum(i * step for i, step in zip(at, steps)) for at in product(*map(range, extents)))
    wanted = [*listed, *wanted]
    assert count_sums(extents, steps, np.array(wanted)).tolist() == [listed[one] for one in wanted]


def test_extents_of_many_bits_cost_no_more():
    started = time.process_time()
    # 6 i + 10 j = 60: (0, 6) (5, 3) (10, 0).
    assert count_sums((2**40, 2**40), (6, 10), np.array([60, 61, -2, 2**62])).tolist()[:3] == [3, 0, 0]
    assert count_sums((2**40, 3, 2**20), (-512, 0, 1), np.array([0, -(2**48)])).tolist() == [3 * 2048, 3 * 2048]
    assert time.process_time() - started < 0.5
