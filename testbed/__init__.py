"""What tests and benchmarks share: model classes, pipelines, checks for real devices. It is not installed."""
