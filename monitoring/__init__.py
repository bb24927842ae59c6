"""What Prometheus and Grafana are given: a dashboard as code, recording rules, alerts and their tests."""
