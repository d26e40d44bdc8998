"""Programs as text: printing, parsing, and the plan file."""
