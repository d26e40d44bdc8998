"""Weight files: headers, byte ranges, quantized types. Nothing but headers is read here."""
