"""The plan of a whole call of a pipeline: what will be called, whether all of it fits, and the table of that."""
