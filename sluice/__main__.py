"""The programs `sluice` and `sluice-pipeline`, and ``python -m sluice``.

In an installation the packages lie inside this one, where no other distribution can overwrite them and where they
hide no other's `config` or `protocol`. A program puts their folder first on the path, for its own process alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
# In a checkout the packages are beside this one.
_PACKAGES: Final = _HERE if (_HERE / "gateway").is_dir() else _HERE.parent


def main() -> int:
    """``sluice``: see `gateway.cli.main`."""
    sys.path.insert(0, str(_PACKAGES))
    from gateway.cli.main import main

    return main()


def pipeline() -> int:
    """``sluice-pipeline``: see `pipeline.cli`."""
    sys.path.insert(0, str(_PACKAGES))
    from pipeline.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
