"""The commands of ``sluice``, one file each: `add_parser` defines the arguments, `run` does the work.

A command answers with the process's exit code. `config.ConfigError` is left to `gateway.cli.main`.
"""
