"""Contracts between processes. The generated code beside each .proto is committed; `make protos` writes it again."""
