"""What holds for every test: a busy machine makes an example slow, not wrong."""

import os

from hypothesis import settings

# As the server does: libgomp's default spinning collapses beside other busy processes. Read when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
settings.register_profile("tidegate", deadline=None)
settings.load_profile("tidegate")
