"""What holds for every test: a busy machine makes an example slow, not wrong."""

from hypothesis import settings

settings.register_profile("tidegate", deadline=None)
settings.load_profile("tidegate")
