"""Recommends quotas from required rates, and checks whether quotas of earlier days would have fitted later ones."""
