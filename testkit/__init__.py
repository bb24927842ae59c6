"""Shared code of tests and benchmarks: scripted brokers and clients, clocks, wire bytes and gateways."""
