"""An hour of faults before one gateway process: what it has at the end of each minute must stay what it was."""
