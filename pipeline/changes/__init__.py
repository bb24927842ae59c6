"""What is different in a week from the week before, by client."""
