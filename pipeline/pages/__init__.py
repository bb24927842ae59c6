"""What the pages that jobs write have in common."""
