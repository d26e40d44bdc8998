"""Converts weights to another type: any checkpoint in, one GGUF or safetensors file out, a few rows at a time."""

from .conversion import Conversion, plan_conversion

__all__ = ["Conversion", "plan_conversion"]
