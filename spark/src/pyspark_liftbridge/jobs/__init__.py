"""Jobs on streams and archives: a pure plan, a task for each piece, and a thin driver."""
