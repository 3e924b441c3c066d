"""Rollouts: vLLM, state export, records, weight sync."""
