"""The live engine: what a worker needs of it, and vLLM behind that. The only room that knows vllm."""
