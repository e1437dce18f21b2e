"""Kernels to put to the test: short, real, and one that is wrong on purpose."""
