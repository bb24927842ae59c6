"""The matrix: brokers of many versions and clients of many kinds, each directly and through the gateway.

* `versions` lists them.
* `clients` builds the client programs and knows their command lines.
* `cells` runs them against one broker and judges each step.
* `page` writes the page of results.

`benchmarks.matrix` is the campaign; `tests/integration/test_matrix.py` has a short form.
"""
