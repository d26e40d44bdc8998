"""The routes: those of OpenAI's images API, those of AUTOMATIC1111's web UI, and the server's own."""
