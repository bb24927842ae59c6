"""The quota store: its interface, its kinds (SQLite, topic, memory), and its place in a running gateway."""
