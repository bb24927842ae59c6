"""Who may change quotas and limits, and where what was changed is kept."""
