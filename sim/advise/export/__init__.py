"""The advice as engines load it: vLLM, SGLang, fastrl."""
