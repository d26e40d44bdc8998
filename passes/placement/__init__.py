"""Where each weight and each operation is: assignments, the passes that spread them over nodes, and the cut."""
