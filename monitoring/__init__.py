"""The Grafana dashboard as code, recording rules, alerts and their tests."""
