"""Benchmarks of DESIGN section 14: `python -m tests.benchmarks [NAME...] [--quick]`.

Every figure is measured in one run against its reference on the same bytes, machine and file system, in rounds that
alternate product and reference. Nothing here asserts a time: figures are printed and written, and people judge.
"""
