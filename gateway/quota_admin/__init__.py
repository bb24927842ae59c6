"""Changing quotas and broker limits at run time: rights, audit lines, and the store."""
