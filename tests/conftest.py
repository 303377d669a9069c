"""What all tests share: hypothesis must not judge by the clock, machines are busy."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
