"""Tasks and the text that a model sees: problems, datasets of prompts, and the tokenizer."""
