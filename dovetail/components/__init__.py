"""One module of a pipeline: its calls, its programs, its weights."""
