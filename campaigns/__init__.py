"""Campaigns: checks that need minutes, real rates or many seeds. `make campaigns` runs all of them.

The list is in `listed.py`. The programs are in `benchmarks`. The packages here contain the loads, faults and checks.
"""
