"""What happened, as calls; metrics; logging."""
