"""Autograd over the core's operations."""
