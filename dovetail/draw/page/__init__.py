"""The HTML page: what it shows as columns of data, and the files that it inlines."""
