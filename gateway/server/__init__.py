"""The process: signals, reload, operations, the admin port, what is built from the configuration."""
