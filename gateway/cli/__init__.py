"""The commands of ``sluice``, one file each: `add_parser` says what they take, `run` does it.

A command answers with the process's exit code. `config.ConfigError` is left to `gateway.cli.main`.
"""
