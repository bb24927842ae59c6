"""Who a client is: the state of its SASL exchange, the name in its certificate."""
