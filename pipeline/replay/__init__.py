"""The quota algorithms over recorded days, clients and candidate quotas at once.

`demand` takes clients' use out of compacted rows, `kernels` hold the algorithms, `dispatch` chooses among them,
`simulation` makes the result table of candidates.
"""
