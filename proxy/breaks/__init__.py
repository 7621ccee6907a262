"""Finds where prompts that are nearly alike part early, and says why. Pure; keeps no text."""
