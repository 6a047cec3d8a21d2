"""The process that answers with the versions of one program, and the zygote it is forked from."""
