"""Model folders that vLLM loads, made here: nothing is fetched from a hub."""
