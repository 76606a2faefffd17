"""Tasks of others as packages of ours, and packages of ours in the forms that others read."""
