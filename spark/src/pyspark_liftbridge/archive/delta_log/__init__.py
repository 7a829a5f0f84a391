"""The Delta log of a table: its actions, checkpoints and schema."""
