"""Around the data path: admin port, reload, live settings, supervisor and workers, upgrades."""
