"""Events as calls and fixed lists; the metrics that count them; journal, status, traces, logging."""
