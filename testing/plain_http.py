"""httpx for doors without TLS: by itself it reads 150 certificates for each call and each client, 18 ms of a core."""

import ssl
from functools import partial

import httpx

_NO_AUTHORITY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
get = partial(httpx.get, verify=_NO_AUTHORITY)
post = partial(httpx.post, verify=_NO_AUTHORITY)
put = partial(httpx.put, verify=_NO_AUTHORITY)
delete = partial(httpx.delete, verify=_NO_AUTHORITY)
request = partial(httpx.request, verify=_NO_AUTHORITY)
client = partial(httpx.Client, verify=_NO_AUTHORITY)
