"""What benchmarks/serving.py measures with: a model, the processes around it, and load."""
