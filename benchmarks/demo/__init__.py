"""From load to quotas in one command: `make demo`. See `docs/pipeline.md`."""
