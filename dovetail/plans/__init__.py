"""Plans that somebody made earlier, or elsewhere, and names for a pipeline to run by."""
