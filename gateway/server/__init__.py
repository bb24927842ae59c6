"""Around the data path: the admin port, reload, live settings, and what follows from the configuration at start."""
