"""The cost of connections, and whether their limits hold.

``python -m benchmarks.connections`` measures the cost of an admitted, a refused and a throttled connection.
The campaigns are separate programs: ``.accuracy``, ``.slowloris`` and ``.churn``.
"""
