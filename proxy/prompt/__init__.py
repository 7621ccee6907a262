"""Bytes to text to tokens to block keys; pure."""
