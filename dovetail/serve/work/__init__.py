"""What the routes work with: the queue of jobs, pictures that are kept for a while, and what is measured."""
