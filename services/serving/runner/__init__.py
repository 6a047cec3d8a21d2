"""The process that answers with one version, and the zygote it is forked from."""
