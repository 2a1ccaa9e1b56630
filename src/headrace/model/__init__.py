"""The frozen nouns of Headrace. Import them from their modules."""
