"""The identity of a client: the state of its SASL exchange, the name in its certificate."""
