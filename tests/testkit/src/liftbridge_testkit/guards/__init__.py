"""Removes guards of the broker, one at a time, and sees that scenarios and random seeds notice."""
