"""Teams: which clients belong to them, what they used together, and what that costs."""
