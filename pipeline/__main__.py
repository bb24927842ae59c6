"""``python -m pipeline JOB``, in a checkout: the same as `sluice-pipeline JOB`."""

import sys

from pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
