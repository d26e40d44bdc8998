"""Pictures to be painted as values, and what paints them with one pipeline that stays loaded."""
