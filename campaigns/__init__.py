"""What needs minutes, real rates or many seeds: `make campaigns` runs all of it and keeps one page of results."""
