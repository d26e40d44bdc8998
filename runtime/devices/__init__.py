"""What devices can do: streams, events, pinned memory, and copies between them."""
