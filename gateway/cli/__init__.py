"""The commands of ``sluice``, one file each: `add_parser` defines the arguments, `run` does the work.

`run` returns the process's exit code. `gateway.cli.main` handles `config.ConfigError`.
"""
