"""The image, the chart and the services of docker-compose.yml, each built or started here and checked."""
