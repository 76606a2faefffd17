"""Policies that need no model."""
