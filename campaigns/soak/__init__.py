"""An hour of faults for one gateway process. Its resources at the end of each minute must not grow."""
