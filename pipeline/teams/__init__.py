"""Teams: which client belongs to which, by the file of groups."""
