"""Consumer groups: services for members of both kinds, for positions, and for people."""
