"""The pure state machine of one client connection: requests, replies in order, mutes, quotas of the data path."""
