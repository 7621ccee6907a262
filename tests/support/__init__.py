"""The test kit: a raw upstream and a raw client on real sockets, and the proxy between them.

Nothing here knows the product's code, except `fixtures`, which starts it.
"""
