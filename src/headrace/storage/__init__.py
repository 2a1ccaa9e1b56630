"""The layout of a storage root, and the small files in it."""
