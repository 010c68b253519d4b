"""What a compression needs, predicted from config.json: memory, disk and time, for any ranks."""
