"""Forecast the RL post-training of LLMs from the first part of a run."""
