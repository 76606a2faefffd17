"""Many tasks at once: what they are, where they come from, what became of them, and how scores on them would stand."""
