"""Any other stream that Spark can open: its positions are opaque."""
