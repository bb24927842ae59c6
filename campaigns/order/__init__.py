"""Checks that nothing gets out of order: small frames, every quota on, random timing, both ends checked."""
