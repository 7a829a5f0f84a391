"""Access control of calls: what each method needs, and who gets it."""
