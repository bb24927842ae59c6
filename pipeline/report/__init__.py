"""What was used: numbers per client, use over time, and the page that shows both."""
