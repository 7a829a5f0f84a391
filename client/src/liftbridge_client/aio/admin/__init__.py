"""The admin client: calls of the services for operators."""
