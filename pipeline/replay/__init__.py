"""The quota algorithms over recorded days, for many clients and candidate quotas at once.

`demand` extracts clients' use from compacted rows, `kernels` has the algorithms, `dispatch` chooses among them,
`simulation` makes the result table of candidates.
"""
