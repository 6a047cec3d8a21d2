"""What the registry keeps on disk: the catalog's tables and the files by digest."""
