"""What the tables of a storage need: compaction and vacuum."""
