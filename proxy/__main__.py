"""`python -m proxy` is `warmroute`."""

import sys

from proxy.cli import main

sys.exit(main())
