"""Whether anything gets out of order: small frames, every quota on, chaos in the timing, both ends checked."""
