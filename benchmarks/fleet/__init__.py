"""One quota over many gateways: schedules with faults, a large fleet by simulation, and real gateways."""
