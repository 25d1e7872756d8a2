"""Health check of the container: asks /readyz for a 200."""

import http.client
import sys

connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=4)
try:
    connection.request("GET", "/readyz")
    sys.exit(0 if connection.getresponse().status == http.HTTPStatus.OK else 1)
except OSError:
    sys.exit(1)
