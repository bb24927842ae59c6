"""The only top-level package of an installation; all others are inside it.

See docs/decisions/0029-install.md. `sluice.__main__` has the programs.
"""
