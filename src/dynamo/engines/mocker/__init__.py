"""A simulation of vLLM's scheduler: real queues, blocks, prefix cache and events, modelled time, made-up tokens."""

from .args import MockerArgs, ReasoningArgs
from .engine import MockerEngine, MockerRunning
from .profile import Profile, ProfileTiming, read_profile
from .ranks import Iteration, Ranks
from .scheduler import Finished, Load
from .timing import PolynomialTiming, Timing
from .tokens import MockVocabulary, answer_for

__all__ = [
    "Finished",
    "Iteration",
    "Load",
    "MockVocabulary",
    "MockerArgs",
    "MockerEngine",
    "MockerRunning",
    "PolynomialTiming",
    "Profile",
    "ProfileTiming",
    "Ranks",
    "ReasoningArgs",
    "Timing",
    "answer_for",
    "read_profile",
]
