"""MLE-Bench: a prepared competition as two packages, one to search on and one whose official test stays whole.

Nothing of mle-bench is installed or imported. Its checkout gives the grader's source and the leaderboard, its data
folder the prepared files. Both packages keep the official file names, so that one program runs on both.
"""
