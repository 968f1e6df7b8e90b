"""What a run must stand: folders that are damaged, and kills at any moment."""
