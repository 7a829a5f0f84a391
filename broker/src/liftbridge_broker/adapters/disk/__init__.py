"""The port `Files` on a file system: one lock, one writer thread, one reader thread."""
