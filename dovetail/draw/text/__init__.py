"""What is said in words: one screen of what runs where, why, and the options that ask for the same."""
