"""Scripts of exact steps: one story about a cluster in ten to thirty lines, in files of text."""
