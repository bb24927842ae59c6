"""Compares a week with the week before, client by client."""
