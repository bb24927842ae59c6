"""From load to quotas in one command: `make demo`. See `docs/tutorial/records-to-a-quota.md`."""
