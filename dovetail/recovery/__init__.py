"""What is done when memory runs out in a call all the same, and how a call goes on from its latents."""
