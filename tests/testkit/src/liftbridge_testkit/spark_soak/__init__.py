"""Soak test: kill runners that archive a stream, then check the table."""
