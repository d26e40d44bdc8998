"""From a program to a schedule: one file a pass, and what is read off a schedule."""
