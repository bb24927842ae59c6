"""Checks the order of frames: small frames, every quota on, random timing, checks at both ends."""
