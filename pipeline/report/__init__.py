"""The report: numbers per client, use over time, and the page that shows both."""
