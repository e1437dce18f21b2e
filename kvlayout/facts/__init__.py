"""What vLLM's backends, connectors and models are: recorded facts, each with its source."""
