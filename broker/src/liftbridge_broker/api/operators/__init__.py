"""Services of the port for operators."""
