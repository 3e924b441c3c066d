"""RL post-training for looped (depth-recurrent) language models."""
