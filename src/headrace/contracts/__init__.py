"""The conditions on the rows of a dataset, and the treatment of rows that fail them."""
