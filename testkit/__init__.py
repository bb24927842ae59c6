"""What tests and benchmarks share: scripted brokers and clients, clocks, wire bytes, gateways, one copy of each."""
