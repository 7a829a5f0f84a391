"""Consumer groups on one broker: sessions of members it coordinates, and seats of readers."""
