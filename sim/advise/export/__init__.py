"""The advice as engines and trainers load it: vLLM, verl, SGLang, TensorRT-LLM, fastrl."""
