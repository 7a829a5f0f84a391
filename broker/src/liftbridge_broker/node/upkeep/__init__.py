"""What is done from time to time: scrubbing, auto pause, retention cursors, restart checks."""
