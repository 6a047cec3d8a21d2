"""The registry's data on disk: the catalog's tables and the files by digest."""
