"""What each team used in a month and what that costs: exact sums of records, prices, and a page."""
