"""What the rows of a dataset must fulfil, and what happens to those that do not."""
