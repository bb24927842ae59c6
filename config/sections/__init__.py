"""The sections of the configuration file, one module each with the section's name: keys, ranges, defaults.

The defaults of all settings are here and nowhere else. Values keep their TOML type: ``"9092"`` is not a number and
``1`` is not true. Times are whole milliseconds, except where the key carries Kafka's own name and unit.
"""
