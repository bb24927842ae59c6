"""The base of the gateway: clocks, durable files, long work in slices, access to topics."""
