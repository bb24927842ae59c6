"""The quota algorithms over many clients and many candidate quotas at once, in numpy.

Pure: arrays in, arrays out, no Spark and no files. Each kernel decides like the class of `quotas` that the gateway
runs, to the last bit where its docstring says so; tests compare both. An array over (client, candidate) has the
clients first. Times are whole milliseconds.
"""
