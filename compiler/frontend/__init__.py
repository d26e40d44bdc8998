"""From an nn.Module and example inputs to a program: tracing, and what a trace needs to be right."""
