"""What an installation puts at the top level: this package alone, with all others inside it.

See docs/decisions/0029-install.md. `sluice.__main__` has the programs.
"""
