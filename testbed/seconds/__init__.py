"""What others measured of whole models on one card, and what is predicted of the same."""
