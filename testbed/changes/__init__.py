"""What users do to a pipeline's weights and code, done to a compiled pipeline and to eager diffusers alike."""
