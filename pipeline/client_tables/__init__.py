"""Days and hours of clients in numbers, made once per compacted day, for recommend and backtest."""
