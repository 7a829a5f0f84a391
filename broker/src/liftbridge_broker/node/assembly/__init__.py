"""The broker on its ports: builds all parts, and takes them through a start and an orderly stop."""
