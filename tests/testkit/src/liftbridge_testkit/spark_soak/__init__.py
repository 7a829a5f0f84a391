"""Kill -9 of runners that archive a stream, and what is in the table then."""
