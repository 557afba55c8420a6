"""Call the proxies without a key, as `helm test` does: Tollgate refuses with its own error."""

import json
import ssl
import sys
import urllib.error
import urllib.request

URL = sys.argv[1]
UNCHECKED = ssl.create_default_context()
"""Nothing secret is sent: who answers is told by the answer."""
UNCHECKED.check_hostname = False
UNCHECKED.verify_mode = ssl.CERT_NONE


def main() -> None:
    try:
        urllib.request.urlopen(f"{URL}/v1/models", timeout=10, context=UNCHECKED)  # noqa: S310  (the URL is ours)
    except urllib.error.HTTPError as error:
        answer = json.load(error)
        if error.code == 401 and "error" in answer:
            print(f"{URL} answers as Tollgate")
            return
        sys.exit(
            f"{URL} answered {error.code}: {answer}. Look at the log of the proxies: kubectl logs statefulset/proxy"
        )
    except OSError as error:
        sys.exit(
            f"{URL} cannot be reached: {error}. Look at kubectl get pods, and whether a NetworkPolicy is in the way"
        )
    sys.exit(f"{URL} asks for no key: it is not Tollgate")


main()
