"""Access control: which principal may do what, decided from rules without I/O."""
