"""What a pass is, and what runs passes one after another."""
