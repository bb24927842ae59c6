"""What happened, as calls and closed lists; the metrics that count it; logging."""
