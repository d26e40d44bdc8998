"""What a request must be before a route sees it: from whom, for which host, of what form and size."""
