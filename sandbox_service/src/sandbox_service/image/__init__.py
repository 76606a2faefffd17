"""The image in which candidate programs run, and how it is built; this folder is the build's context."""
