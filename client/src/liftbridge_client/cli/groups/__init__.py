"""Commands for people who look after consumer groups."""
