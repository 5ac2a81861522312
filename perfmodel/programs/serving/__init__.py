"""Programs that serve language models: vLLM, SGLang and other engines, and what their steps do."""
