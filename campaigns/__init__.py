"""Campaigns: checks that need minutes, real rates or many seeds. `make campaigns` runs all of them.

The list is in `listed.py`. The programs are in `benchmarks`; what they play and check is in the packages here.
"""
