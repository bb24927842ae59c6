"""Changing quotas and limits of brokers in a running gateway: rights, audit lines, and the store that keeps them."""
