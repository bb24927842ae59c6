"""Quotas out of required rates, and whether quotas of earlier days would have fitted the next."""
