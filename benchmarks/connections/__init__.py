"""What connections cost, and whether their limits hold.

``python -m benchmarks.connections`` measures what a connection costs that is let in, refused or kept waiting.
The campaigns are programs of their own: ``.accuracy``, ``.slowloris`` and ``.churn``.
"""
