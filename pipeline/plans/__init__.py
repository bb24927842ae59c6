"""Plans of quotas: their file, what applying one changes, and the client that reads and alters quotas."""
