"""Teams: their clients, their use, and its cost."""
