"""The server around the data path: admin port, reload, live settings, supervisor and workers, upgrades."""
