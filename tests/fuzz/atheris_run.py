"""Fuzz one target with coverage guidance: `python -m tests.fuzz.atheris_run TARGET --seconds N [--runs N]`.

A process of its own, since the modules under test are instrumented as they are imported. It ends with 0 when nothing
was found; otherwise the traceback and the bytes are printed, and the bytes kept in the corpus folder as ``crash-*``.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

import atheris

_INSTRUMENTED: Final = ["protocol", "config", "gateway.auth.principals", "gateway.auth.authentication", "tests.fuzz"]
_MAX_BYTES: Final = 600
_SLOW_S: Final = 10
_MAX_RSS_MB: Final = 1_024


def main() -> None:
    """Read the command line and fuzz; libFuzzer ends the process."""
    with atheris.instrument_imports(include=_INSTRUMENTED, enable_loader_override=False):
        from tests.fuzz.planted import PLANTED
        from tests.fuzz.targets import SEEDS, TARGETS
    targets = TARGETS | PLANTED
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.atheris_run")
    parser.add_argument("target", choices=sorted(targets))
    parser.add_argument("--seconds", type=int, default=30, help="how long at most (30)")
    parser.add_argument("--runs", type=int, default=-1, help="how many at most")
    parser.add_argument("--corpus", type=Path, help="folder that keeps what was learnt (.cache/fuzz/TARGET)")
    arguments = parser.parse_args()
    corpus = arguments.corpus or Path(".cache", "fuzz", arguments.target)
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS.get(arguments.target, ())):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={arguments.seconds}",
        f"-runs={arguments.runs}",
        f"-max_len={_MAX_BYTES}",
        f"-timeout={_SLOW_S}",
        f"-rss_limit_mb={_MAX_RSS_MB}",
        f"-artifact_prefix={corpus}/",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], targets[arguments.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
