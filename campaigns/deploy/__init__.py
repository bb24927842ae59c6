"""Builds or starts the image, the chart and the services of docker-compose.yml, and checks them."""
