"""One round of the digits by every way of training on several processes or devices."""
