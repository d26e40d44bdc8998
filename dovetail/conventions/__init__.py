"""What diffusers, transformers, peft and accelerate call things and expect, and how a person asks for a placement."""
