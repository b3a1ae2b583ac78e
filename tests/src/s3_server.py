# SPDX-License-Identifier: MIT OR Apache-2.0
"""moto's server at the port of the first argument. It looks at the condition of a request and writes later, on a thread for each request,
so that two of the same condition may both find it true: here one such request is answered after the other, as by S3."""

import sys
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

answer = DomainDispatcherApplication(create_backend_app)
conditional = threading.Lock()


def application(environ, start_response):
    if "HTTP_IF_MATCH" in environ or "HTTP_IF_NONE_MATCH" in environ:
        with conditional:
            return answer(environ, start_response)
    return answer(environ, start_response)


run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=MotoRequestHandler)
