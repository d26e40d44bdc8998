"""What a drawing shows of a program: its operations in boxes, and what repeats shown once."""
