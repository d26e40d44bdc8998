"""The laws of the design as properties of generated graphs and generated modules."""
