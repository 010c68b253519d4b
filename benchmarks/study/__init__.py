"""Studies of quality: their records, what measures them, and what draws them."""
