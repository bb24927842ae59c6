"""Quotas from required rates, and whether quotas of earlier days would have fitted the next."""
