"""Events as method calls and fixed lists; metrics that count them; journal, status, traces, logging."""
