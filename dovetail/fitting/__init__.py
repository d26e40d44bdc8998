"""From a traced pipeline and what a person asked for to a plan that was searched, and back to a request."""
