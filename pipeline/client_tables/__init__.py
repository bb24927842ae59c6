"""Days and hours of clients in numbers, made once for each compacted day: what recommend and backtest read."""
