"""What all of the gateway stands on: clocks, durable files, long work in slices, rights on topics."""
