"""The metadata group on this broker: founding, joining, consensus, proposals, broker sessions."""
